"""Which modules ``torch.compile`` makes one graph of (dPRO's operator fusion, section 5).

A compiled region computes faster, but its gradients are complete together, at its end, so their
transfers begin later. A larger region saves more and delays more. Whether small regions gain
anything at all differs from model to model: torch changes the layouts of tensors at their borders.
So regions are only made of runs of modules whose cost was measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from byteprophet.job import Job
from byteprophet.job.region_costs import Unit
from byteprophet.job.strategy import COMPILED, Region
from byteprophet.optimize.moves import Effect, Hints, Move
from byteprophet.optimize.regions import Computing

_Chain = Sequence[Unit]


class Compile(Computing):
    """Makes, merges, splits and removes compiled regions."""

    name = "compile"
    effect = Effect.ROUNDING
    why = "A compiled region computes faster, but its gradients are ready together, at its end."
    words = frozenset({COMPILED})

    def starts(self, job: Job) -> Iterator[Move]:
        """The whole model, and regions of equal length over all of a chain: all twins alike."""
        for chain in self.costs.chains:
            for length in range(1, len(chain) + 1):
                regions = [
                    region
                    for first in range(0, len(chain), length)
                    if (region := self._region(chain[first : first + length])) is not None
                ]
                if regions:
                    yield from self._move(job, regions, _title(chain, length))

    def moves(self, job: Job, hints: Hints) -> Iterator[Move]:
        """Every change of one region of a chain, or of two that follow each other."""
        regions = job.strategy.regions
        for chain in self.costs.chains:
            places = {unit[0]: place for place, unit in enumerate(chain)}
            taken = [region for region in regions if region.modules[0] in places]
            if len(taken) < len(regions):
                continue  # another chain's regions would overlap with this one's
            yield from self._moves(job, chain, taken, places)

    def _moves(
        self, job: Job, chain: _Chain, taken: list[Region], places: dict[str, int]
    ) -> Iterator[Move]:
        spans = sorted((places[each.modules[0]], _length(chain, each, places)) for each in taken)
        covered = {first + n for first, length in spans for n in range(length)}
        by_first = {places[each.modules[0]]: each for each in taken}
        runs = [(first, length, True) for first, length in spans]
        runs += [(place, 1, False) for place in range(len(chain)) if place not in covered]
        runs.sort()
        for first, length, compiled in runs:
            others = [each for at, each in by_first.items() if at != first]
            where = "+".join(unit[0] for unit in chain[first : first + length])
            if not compiled:
                yield from self._changed(
                    job, others, [chain[first : first + 1]], f"compile {where}"
                )
                continue
            yield from self._move(job, others, f"do not compile {where}")
            for at in sorted({1, length // 2, length - 1} & set(range(1, length))):
                parts = [chain[first : first + at], chain[first + at : first + length]]
                yield from self._changed(job, others, parts, f"split {where} after {at}")
        for (first, _, one), (second, further, other) in pairwise(runs):
            if one or other:
                others = [each for at, each in by_first.items() if at not in (first, second)]
                both = chain[first : second + further]
                where = "+".join(unit[0] for unit in both)
                yield from self._changed(job, others, [both], f"compile {where} as one")

    def _changed(
        self, job: Job, others: list[Region], parts: Sequence[_Chain], what: str
    ) -> Iterator[Move]:
        made = [self._region(part) for part in parts]
        if None not in made:
            yield from self._move(job, [*others, *(each for each in made if each)], what)

    def _move(self, job: Job, regions: Iterable[Region], what: str) -> Iterator[Move]:
        changed = self.with_regions(job, regions)
        if changed is not None:
            yield Move(what, changed)

    def _region(self, units: _Chain) -> Region | None:
        """``units`` as a compiled region, if that was measured, and is faster alone."""
        modules = tuple(path for unit in units for path in unit)
        cost = self.costs.regions.get(modules)
        if cost is None or not cost.parameters:
            return None
        region = Region(modules, compiled=True)
        for autocast in (False, True):
            plain = cost.modes.get(Region(modules).mode(autocast))
            compiled = cost.modes.get(region.mode(autocast))
            if plain is not None and compiled is not None and compiled.both_ns < plain.both_ns:
                return region
        return None


def _length(chain: _Chain, region: Region, places: dict[str, int]) -> int:
    first = places[region.modules[0]]
    return sum(unit[0] in region.modules for unit in chain[first:])


def _title(chain: _Chain, length: int) -> str:
    if chain[0] == ("",):
        return "compile the whole model"
    if length == len(chain) > 1:
        return f"compile {chain[0][0]} to {chain[-1][0]} as one"
    return f"compile {chain[0][0]} to {chain[-1][0]}, {length} at a time"
