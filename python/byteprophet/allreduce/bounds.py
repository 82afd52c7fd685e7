"""Lower bounds of an iteration: for any schedule, for DeAR, and for all-reduce during backward.

None of them knows a cost per message. The equations are the DeAR paper's (Zhang et al., ICDCS
2023). ``rs`` and ``ag`` are the times of all reduce-scatters and of all all-gathers. If ranks are
equal, each of them moves (ranks - 1) / ranks of the bytes over every link. Otherwise directions of
links differ, and a bound is that of the direction for which it is largest. ``bp``
and ``ff`` are the times of backward and forward, and ``ar`` is rs + ag.

The denominator of Eq. 6, ff + bp + ar - min(rs, bp) - min(ag, ff), equals Eq. 7. So an iteration
that takes as long as Eq. 7 has the paper's largest speedup. The paper claims this limit for "any
scheduling algorithm", but it holds for DeAR only, because DeAR leaves the link idle if the
reduce-scatters take less time than backward. Eq. 7 may also be below the bound, because it assumes
that the link is busy from the start of backward on, and that the last gradient takes no time.
``dear_ideal_ns`` is the larger of the two.
"""

from __future__ import annotations

import numpy as np

from byteprophet.allreduce.timing import Timing
from byteprophet.bound import Ranks, all_reduce_bound_ns


def bound_ns(timing: Timing) -> int:
    """The time in ns that no iteration is below, for any buckets and owners in any order.

    It is the bound of ``byteprophet.bound`` for a job whose ranks compute alike.
    """
    link = timing.link
    rates_bps = link.rates_bps or (link.bandwidth_bps,) * link.ranks
    ranks = Ranks(
        np.tile(np.array(timing.ready_ns, np.int64), (link.ranks, 1)),
        np.tile([each.forward_ns for each in timing.parameters], (link.ranks, 1)),
        (timing.backward_ns,) * link.ranks,
        rates_bps,
        rates_bps,
        (0,) * link.ranks,
    )
    return all_reduce_bound_ns([each.size_bytes for each in timing.parameters], ranks)


def eq6_max_speedup(timing: Timing) -> float:
    """Eq. 6: the largest speedup of all ranks over one rank that does not communicate."""
    return timing.link.ranks * timing.compute_ns / max(1, eq7_dear_ns(timing))


def eq7_dear_ns(timing: Timing) -> int:
    """Eq. 7, max(ff, ag) + max(bp, rs): DeAR with the largest possible overlap."""
    return max(
        max(timing.forward_ns, gather_ns) + max(timing.backward_ns, reduce_ns)
        for reduce_ns, gather_ns in _halves_ns(timing)
    )


def eq8_allreduce_ns(timing: Timing) -> int:
    """Eq. 8, ff + max(bp, ar): all-reduces overlap backward, and forward waits for all of them."""
    return timing.forward_ns + max(timing.backward_ns, *map(sum, _halves_ns(timing)))


def dear_ideal_ns(timing: Timing) -> int:
    """The ideal for DeAR: the larger of Eq. 7 and the bound."""
    return max(eq7_dear_ns(timing), bound_ns(timing))


def _halves_ns(timing: Timing) -> list[tuple[int, int]]:
    """The times of rs and ag on each direction of links that differ.

    They are rounded down, because they are part of a lower bound.
    """
    return [
        (int(timing.size_bytes * reduce), int(timing.size_bytes * gather))
        for reduce, gather in timing.link.directions
    ]
