"""How much each rank owns of every bucket, where ranks' links differ.

The start has the levelled shares, which no others beat if links alone count, in the buckets that
the runtime plans for them. ``dear`` is not offered: there, all reduce-scatters come before all
all-gathers, so that their loads do not level out, and equal shares are the best ones
(docs/allreduce.md). The moves shift a part of what one rank owns to another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations

from byteprophet.allreduce.levelled import levelled
from byteprophet.allreduce.strategies import strategy_for
from byteprophet.job import Job
from byteprophet.job.owners import Owners, text_of
from byteprophet.job.strategy import ALL_REDUCE, DEAR_PLANNED, OURS
from byteprophet.optimize.moves import Effect, Hints, Move
from byteprophet.replay.all_reduce import with_strategy

_PARTS = 240
"""Shares are shifted in parts of this sum."""

_SHIFTS = (24, 6)


class OwnersPass:
    """Gives more to owners whose links have time left, and less to the others."""

    name = "owners"
    effect = Effect.EXACT
    why = "A rank that owns less sends and receives less, so its slow link is no longer the limit."

    def starts(self, job: Job) -> Iterator[Move]:
        """The levelled shares, and equal ones if the recorded ones are not."""
        if not _may_differ(job):
            return
        now = Owners.of(job.strategy.owners, job.workers)
        level = levelled([host.slower_bps for host in job.cluster.workers])
        for owners in (level, Owners.equal(job.workers)):
            if owners != now:
                for runtime in (ALL_REDUCE, DEAR_PLANNED):
                    asked = replace(job.strategy, owners=owners.unequal)
                    strategy = strategy_for(replace(job, strategy=asked), runtime)
                    what = f"owners {text_of(owners.weights)}, buckets planned by {runtime}"
                    yield Move(what, with_strategy(job, strategy))

    def moves(self, job: Job, hints: Hints) -> Iterator[Move]:
        """Shift a part of one rank's share to another's; ranks that are alike are tried once."""
        if not _may_differ(job):
            return
        now = Owners.of(job.strategy.owners, job.workers)
        parts = [round(share * _PARTS) for share in now.shares]
        alike = list(zip((host.slower_bps for host in job.cluster.workers), parts, strict=True))
        seen = set()
        for giver, taker in permutations(range(job.workers), 2):
            kinds = alike[giver], alike[taker]
            for shift in _SHIFTS:
                if parts[giver] < shift or (kinds, shift) in seen:
                    continue
                seen.add((kinds, shift))
                changed = list(parts)
                changed[giver] -= shift
                changed[taker] += shift
                strategy = replace(job.strategy, owners=Owners.of(changed, job.workers).unequal)
                what = f"{shift / _PARTS:.1%} of all from rank {giver} to rank {taker}"
                yield Move(what, with_strategy(job, strategy))


def _may_differ(job: Job) -> bool:
    """Whether other owners may be faster than equal ones."""
    rates_bps = {host.slower_bps for host in job.cluster.workers}
    unequal = len(rates_bps) > 1 or bool(job.strategy.owners)
    return job.strategy.runtime in OURS and job.workers > 2 and unequal
