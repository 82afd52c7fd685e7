"""A limit of memory: which jobs fit, and what makes one fit that does not.

A job's peak is that of its mix of recomputed units, as the script's own process measured it, plus
what its runtime keeps besides on a rank (``memory/on_rank.py``), all of it at the worst moment.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

import numpy as np

from byteprophet.errors import UserError
from byteprophet.job import Job
from byteprophet.job.region_costs import RegionCosts
from byteprophet.job.region_memory import RegionMemory
from byteprophet.job.strategy import BYTEPS, DDP, FSDP2, OURS, RECOMPUTED, Region, Strategy
from byteprophet.job.times import Int64Array
from byteprophet.memory.cheapest import all_mixes, cheapest
from byteprophet.memory.on_rank import on_rank
from byteprophet.optimize.by_parameter import ByParameter
from byteprophet.optimize.computing import Computing
from byteprophet.optimize.moves import Move
from byteprophet.optimize.passes.recompute import Recompute
from byteprophet.optimize.passes.runtime import Runtime
from byteprophet.optimize.regions import recompute_ns
from byteprophet.optimize.search import Repair
from byteprophet.schedulers import STOCK


def why_unlimited(job: Job) -> str | None:
    """Why it is not known what ``job`` takes, whatever its regions are; None if it may be."""
    runtime = job.strategy.runtime
    if runtime == FSDP2:
        return (
            "no strategy changes a job of FSDP2: record the script under another sync, and it may "
            "move there"
        )
    if runtime not in (BYTEPS, DDP, *OURS) or (job.policy is not None and job.policy.name == STOCK):
        return f"what {job.title} takes is not known"
    return None


class MemoryLimit(Computing):
    """A limit of ``budget_bytes`` on each rank. It must ``learn`` a job's costs before its use."""

    words = frozenset({RECOMPUTED})

    def __init__(self, memory: RegionMemory, budget_bytes: int) -> None:
        super().__init__()
        self._memory = memory
        self.budget_bytes = budget_bytes
        self._repaired: dict[Hashable, Repair | None] = {}
        self._sharded: tuple[Job, int] | None = None

    def learn(self, job: Job, costs: RegionCosts, parameters: ByParameter | None = None) -> None:
        """See ``Computing``."""
        super().learn(job, costs, parameters)
        extra_ns = [recompute_ns(costs, unit) for unit in self._memory.units]
        self._mixes = all_mixes([each > 0 for each in extra_ns])
        self._costs_ns = self._mixes @ np.array(extra_ns, dtype=np.int64)

    def learn_sharded(self, job: Job, peak_bytes: int) -> None:
        """Take the recorded command's job under FSDP2, and what was measured of its memory."""
        self._sharded = job, peak_bytes
        self._repaired.clear()

    def knows(self, job: Job) -> bool:
        """Whether it is known what the job's runtime takes, and each of its regions."""
        strategy = job.strategy
        if strategy.runtime == FSDP2:
            return self._sharded is not None and strategy == self._sharded[0].strategy
        return (
            why_unlimited(job) is None
            and not {each.modules for each in strategy.regions} - {*self._memory.units}
            and not any(each.compiled for each in strategy.regions)
            and not strategy.autocast
            and not strategy.changes_gradients
        )

    def peak_bytes(self, job: Job) -> int:
        """The highest that memory gets on a rank of ``job``. ``UserError`` if that is not known."""
        if not self.knows(job):
            raise UserError(f"memory: what {job.title} takes is not known")
        if self._sharded is not None and job.strategy.runtime == FSDP2:
            return self._sharded[1]
        recomputed = {each.modules for each in job.strategy.regions if each.recomputed}
        mix = [unit in recomputed for unit in self._memory.units]
        return int(self._peaks(job, np.array([mix], dtype=np.int64))[0])

    def fits(self, job: Job) -> bool:
        """Whether ``job`` is known to stay within the limit."""
        return self.knows(job) and self.peak_bytes(job) <= self.budget_bytes

    def repaired(self, job: Job) -> Repair | None:
        """``job`` with the cheapest mix of recomputed units that fits, or else sharded by FSDP2.

        None if neither fits.
        """
        plain = replace(job, strategy=replace(job.strategy, regions=()))
        key = plain.decided
        if key not in self._repaired:
            self._repaired[key] = self._recomputed(plain) or self._shard()
        return self._repaired[key]

    def least_bytes(self, job: Job) -> int:
        """The lowest peak of any mix under the runtime of ``job``, and under FSDP2."""
        least = int(self._peaks(job, self._mixes).min())
        return least if self._sharded is None else min(least, self._sharded[1])

    def why_not(self, job: Job) -> str:
        """Why nothing makes ``job`` fit."""
        if not self.knows(replace(job, strategy=replace(job.strategy, regions=()))):
            return f"memory: what {job.title} takes is not known, so it cannot be limited"
        instead = "shard the parameters by FSDP2"
        also = ""
        if self._sharded is not None:
            instead, also = "use more ranks", f", or by FSDP2, where it takes {self._sharded[1]}"
        return (
            f"memory: {job.title} takes at least {self.least_bytes(job)} bytes on a rank, with all "
            f"that can be recomputed{also}; the budget is {self.budget_bytes}: raise it, use "
            f"smaller batches, or {instead}"
        )

    def _shard(self) -> Repair | None:
        if self._sharded is None or not self.fits(self._sharded[0]):
            return None
        move = Move("the model sharded by FSDP2, as it was measured", self._sharded[0])
        return Repair(Runtime.name, move)

    def _recomputed(self, plain: Job) -> Repair | None:
        if not self.knows(plain) or plain.strategy.runtime == FSDP2:
            return None
        places = cheapest(self._peaks(plain, self._mixes), self._costs_ns, self.budget_bytes)
        if not len(places):
            return None
        chosen = [
            unit
            for unit, state in zip(self._memory.units, self._mixes[places[0]], strict=True)
            if state
        ]
        changed = self.with_regions(plain, [Region(unit, recomputed=True) for unit in chosen])
        if changed is None:
            return None
        what = f"recompute {', '.join(unit[0] for unit in chosen) or 'nothing'}"
        return Repair(Recompute.name, Move(what, changed))

    def _peaks(self, job: Job, mixes: Int64Array) -> Int64Array:
        """``job.strategy`` must be known, apart from its regions."""
        memory, strategy = self._memory, job.strategy
        if not memory.shardable:  # every rank will update all, whatever the strategy says
            whole = tuple(replace(bucket, sharded=False) for bucket in strategy.buckets)
            strategy = replace(strategy, buckets=whole)
        # With equal owners, no rank's shards are larger than those of the last one.
        ranks = range(job.workers) if strategy.owners else (job.workers - 1,)
        peaks = np.max([self._peaks_of(rank, job.workers, strategy, mixes) for rank in ranks], 0)
        # The memory of shared buffers stays. Their answers come as late as those of all members.
        plain = self.plain(job)
        return np.asarray(peaks + (0 if plain is None else plain.buffers_bytes), dtype=np.int64)

    def _peaks_of(self, rank: int, ranks: int, strategy: Strategy, mixes: Int64Array) -> Int64Array:
        memory = self._memory
        places = len(memory.phases.owner)
        here = on_rank(strategy, memory.parameters, places, ranks, rank, memory.update_bytes)
        kept = 0 if strategy.runtime == DDP else memory.reducer_bytes
        return memory.phases.peaks(mixes, here.extra_bytes) - here.saved_state_bytes + kept
