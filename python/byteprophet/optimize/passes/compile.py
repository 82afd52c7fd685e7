"""Which modules ``torch.compile`` makes one graph of (dPRO's operator fusion, section 5).

A compiled region computes faster, but its gradients are complete together, at its end, so their
transfers begin later. A larger region saves more and delays more. Whether small regions gain
anything at all differs from model to model: torch changes the layouts of tensors at their borders.
So regions are only made of runs of modules whose cost was measured.

Moves stand in the order of what Theorem 1 expects of them (``region_changes.py``). Where modules
become a region, the same move is also offered with one bucket for all its gradients, which Theorem
3 speaks of. A replay decides in any case.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from byteprophet.allreduce.groups import Groups
from byteprophet.allreduce.strategies import strategy_of_groups, timing_of
from byteprophet.job import Job, Strategy
from byteprophet.job.region_costs import Unit
from byteprophet.job.strategy import COMPILED, OURS, Region
from byteprophet.optimize.computing import Computing, in_regions
from byteprophet.optimize.moves import Effect, Hints, Move
from byteprophet.optimize.region_changes import Expected, RegionChanges
from byteprophet.replay.all_reduce import with_strategy

_Chain = Sequence[Unit]
_LEAST_SAVING = 0.05
"""The least share of its time, measured alone, that a region must save.

In jobs, regions that saved less made iterations longer.
"""


@dataclass(frozen=True)
class _Change:
    """``run``: the units that change. ``regions``: all regions after that.

    ``fuses``: the run becomes one region; otherwise it was one.
    """

    what: str
    run: _Chain
    regions: tuple[Region, ...]
    fuses: bool


class Compile(Computing):
    """Makes, merges, splits and removes compiled regions."""

    name = "compile"
    effect = Effect.ROUNDING
    why = "A compiled region computes faster, but its gradients are ready together, at its end."
    words = frozenset({COMPILED})

    def starts(self, job: Job) -> Iterator[Move]:
        """The whole model, and regions of equal length over all of a chain: all twins alike."""
        autocast = job.strategy.autocast
        for chain in self.costs.chains:
            for length in range(1, len(chain) + 1):
                regions = [
                    region
                    for first in range(0, len(chain), length)
                    if (region := self._region(chain[first : first + length], autocast)) is not None
                ]
                strategy = in_regions(job.strategy, regions)
                if not regions or not self.can_make(job, strategy):
                    continue
                yield Move(_title(chain, length), _Made(self, job, strategy))
                if job.strategy.runtime in OURS and self.can_make(job, job.strategy):
                    names = [self._parameters(job, region.modules) for region in regions]
                    changes = RegionChanges(self, job, Hints())
                    together = changes.together(strategy, names, Expected(0))
                    if together is not None:
                        made = _Made(self, job, strategy, together[0])
                        yield Move(f"{_title(chain, length)}, with a bucket for each", made)

    def moves(self, job: Job, hints: Hints) -> Iterator[Move]:
        """Every change of one region of a chain, or of two that follow each other."""
        if not self.can_make(job, job.strategy):
            return
        changes = RegionChanges(self, job, hints)
        found: list[tuple[int, Move]] = []
        for change in self._changes(job):
            strategy = in_regions(job.strategy, change.regions)
            names = self._parameters(job, _modules(change.run))
            if not names or not self.can_make(job, strategy):
                continue
            expected = changes.expected(strategy, names, fuses=change.fuses)
            move = Move(change.what, _Made(self, job, strategy), expected.theorem)
            found.append((expected.gain_ns, move))
            together = None
            if change.fuses and job.strategy.runtime in OURS:
                together = changes.together(strategy, [names], expected)
            if together is not None:
                groups, expected = together
                with_bucket = _Made(self, job, strategy, groups)
                what = f"{change.what}, with one bucket"
                found.append((expected.gain_ns, Move(what, with_bucket, expected.theorem)))
        found.sort(key=lambda each: -each[0])
        yield from (move for _, move in found)

    def _changes(self, job: Job) -> Iterator[_Change]:
        regions = job.strategy.regions
        for chain in self.costs.chains:
            places = {unit[0]: place for place, unit in enumerate(chain)}
            taken = [region for region in regions if region.modules[0] in places]
            if len(taken) < len(regions):
                continue  # another chain's regions would overlap with this one's
            yield from self._changes_of(chain, taken, places, job.strategy.autocast)

    def _changes_of(
        self, chain: _Chain, taken: list[Region], places: dict[str, int], autocast: bool
    ) -> Iterator[_Change]:
        spans = sorted((places[each.modules[0]], _length(chain, each, places)) for each in taken)
        covered = {first + n for first, length in spans for n in range(length)}
        by_first = {places[each.modules[0]]: each for each in taken}
        runs = [(first, length, True) for first, length in spans]
        runs += [(place, 1, False) for place in range(len(chain)) if place not in covered]
        runs.sort()
        for first, length, compiled in runs:
            others = [each for at, each in by_first.items() if at != first]
            run = chain[first : first + length]
            where = "+".join(unit[0] for unit in run)
            if not compiled:
                yield from self._changed(f"compile {where}", run, others, [run], autocast)
                continue
            yield _Change(f"do not compile {where}", run, tuple(others), fuses=False)
            for at in sorted({1, length // 2, length - 1} & set(range(1, length))):
                parts = [run[:at], run[at:]]
                yield from self._changed(f"split {where} after {at}", run, others, parts, autocast)
        for (first, _, one), (second, further, other) in pairwise(runs):
            if one or other:
                others = [each for at, each in by_first.items() if at not in (first, second)]
                both = chain[first : second + further]
                where = "+".join(unit[0] for unit in both)
                yield from self._changed(f"compile {where} as one", both, others, [both], autocast)

    def _changed(
        self,
        what: str,
        run: _Chain,
        others: list[Region],
        parts: Sequence[_Chain],
        autocast: bool,
    ) -> Iterator[_Change]:
        made = [region for part in parts if (region := self._region(part, autocast)) is not None]
        if len(made) == len(parts):
            yield _Change(what, run, (*others, *made), fuses=len(parts) == 1)

    def _parameters(self, job: Job, modules: Unit) -> list[str]:
        """The parameters of a run of modules that have gradients in ``job``, if it was measured."""
        cost, plain = self.costs.regions.get(modules), self.plain(job)
        if cost is None or plain is None:
            return []
        return [name for name in cost.parameters if name in plain.model.places]

    def _region(self, units: _Chain, autocast: bool) -> Region | None:
        """``units`` as a compiled region, if that was measured, and is clearly faster alone.

        ``autocast``: of the job, which computes all modules in the same precision.
        """
        modules = _modules(units)
        cost = self.costs.regions.get(modules)
        if cost is None or not cost.parameters:
            return None
        region = Region(modules, compiled=True)
        plain = cost.modes.get(Region(modules).mode(autocast))
        compiled = cost.modes.get(region.mode(autocast))
        if plain is None or compiled is None:
            return None
        return region if compiled.both_ns <= (1 - _LEAST_SAVING) * plain.both_ns else None


@dataclass(frozen=True)
class _Made:
    """Makes the changed job when the search wants to see it; ``groups``: its buckets, if new."""

    by: Computing
    job: Job
    strategy: Strategy
    groups: Groups = ()

    def __call__(self) -> Job:
        changed = self.by.made(self.job, self.strategy)
        if not self.groups:
            return changed
        timing = timing_of(changed)
        runtime = self.strategy.runtime
        return with_strategy(changed, strategy_of_groups(timing, runtime, self.groups))


def _modules(units: _Chain) -> Unit:
    return tuple(path for unit in units for path in unit)


def _length(chain: _Chain, region: Region, places: dict[str, int]) -> int:
    first = places[region.modules[0]]
    return sum(unit[0] in region.modules for unit in chain[first:])


def _title(chain: _Chain, length: int) -> str:
    if chain[0] == ("",):
        return "compile the whole model"
    if length == len(chain) > 1:
        return f"compile {chain[0][0]} to {chain[-1][0]} as one"
    return f"compile {chain[0][0]} to {chain[-1][0]}, {length} at a time"
