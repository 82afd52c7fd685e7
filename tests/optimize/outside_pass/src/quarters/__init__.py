"""A pass that is not byteprophet's own: four buckets of equally many gradients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from byteprophet.allreduce.strategies import strategy_of_groups, timing_of
from byteprophet.job import Job
from byteprophet.job.strategy import OURS
from byteprophet.optimize.moves import Effect, Hints, Move
from byteprophet.replay.all_reduce import with_strategy


class Quarters:
    """Offers one start."""

    name = "quarters"
    effect = Effect.EXACT

    def starts(self, job: Job) -> Iterator[Move]:
        """The order of readiness in four parts."""
        if job.strategy.runtime in OURS:
            timing = timing_of(job)
            order = timing.by_readiness
            ends = [len(order) * quarter // 4 for quarter in range(5)]
            groups = tuple(order[a:b] for a, b in pairwise(ends) if a < b)
            strategy = strategy_of_groups(timing, job.strategy.runtime, groups)
            yield Move("four buckets", with_strategy(job, strategy))

    def moves(self, job: Job, hints: Hints) -> Iterable[Move]:
        """None."""
        return ()
