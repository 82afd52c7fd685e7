"""Which modules keep only their input, and run again in the backward pass (checkpointing).

This takes time and saves memory, so it pays only where memory is limited (``memory_limit.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from byteprophet.job import Job
from byteprophet.job.strategy import RECOMPUTED, Region
from byteprophet.optimize.computing import Computing
from byteprophet.optimize.moves import Effect, Hints, Move
from byteprophet.optimize.regions import recompute_ns


class Recompute(Computing):
    """Recomputes one module more, or less, or another."""

    name = "recompute"
    effect = Effect.EXACT
    why = "A recomputed module keeps only its input, and takes the time of its forward pass again."
    words = frozenset({RECOMPUTED})
    saves_memory = True

    def starts(self, job: Job) -> Iterable[Move]:
        """None: what does not fit is repaired by the limit itself."""
        return ()

    def moves(self, job: Job, hints: Hints) -> Iterator[Move]:
        """What costs most is given up first; then one is taken for another."""
        taken = {each.modules: each for each in job.strategy.regions if each.recomputed}
        units = dict.fromkeys(unit for chain in self.costs.chains[1:] for unit in chain)
        extra_ns = {unit: recompute_ns(self.costs, unit) for unit in (*units, *taken)}
        free = sorted(
            (unit for unit in units if extra_ns[unit] and unit not in taken),
            key=extra_ns.__getitem__,
        )
        costly = sorted(taken, key=extra_ns.__getitem__, reverse=True)
        for unit in costly:
            others = [each for each in job.strategy.regions if each.modules != unit]
            yield from self._move(job, others, f"do not recompute {unit[0]}")
        for unit in costly:
            others = [each for each in job.strategy.regions if each.modules != unit]
            for other in free:
                if extra_ns[other] < extra_ns[unit]:
                    regions = [*others, Region(other, recomputed=True)]
                    yield from self._move(job, regions, f"recompute {other[0]} for {unit[0]}")

    def _move(self, job: Job, regions: Iterable[Region], what: str) -> Iterator[Move]:
        changed = self.with_regions(job, regions)
        if changed is not None:
            yield Move(what, changed)
