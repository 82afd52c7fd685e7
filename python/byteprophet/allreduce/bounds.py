"""What no schedule, no DeAR and no all-reduce behind backward can be faster than.

All are of one link that carries every parameter twice, messages being free: ``rs`` and ``ag``, the
times of all reductions and all gathers, are (ranks - 1) / ranks of the bytes each; ``bp`` and
``ff`` are backward and forward. Equations are the DeAR paper's (Zhang et al., ICDCS 2023).

Eq. 6's denominator, ff + bp + ar - min(rs, bp) - min(ag, ff), is Eq. 7: its largest speedup is what
an iteration of Eq. 7 gives. It is DeAR's own, not that of "any scheduling algorithm", as the paper
says, because it lets the link idle where reductions are shorter than backward. And it may lie
below the bound, because it takes the link to be busy from the start of backward on, and the last
gradient to need nothing: ``dear_ideal_ns`` is the larger of both.
"""

from __future__ import annotations

from byteprophet import _core
from byteprophet.allreduce.timing import Timing
from byteprophet.workload.bound import all_reduced_bytes


def bound_ns(timing: Timing) -> int:
    """The iteration that no order of no groups is shorter than (prophet/bound.h).

    Of a workload's timing, ``workload.bound.all_reduce_bound_ns``.
    """
    link = timing.link
    return _core.iteration_bound_ns(
        [all_reduced_bytes(each.size_bytes, link.ranks) for each in timing.parameters],
        timing.ready_ns,
        [each.forward_ns for each in timing.parameters],
        backward_ns=timing.backward_ns,
        bandwidth_bps=link.bandwidth_bps,
        workers=link.ranks,
        servers=link.ranks,
        server_bandwidth_bps=None,
    )


def eq6_max_speedup(timing: Timing) -> float:
    """Of all ranks together over one rank that need not communicate."""
    return timing.link.ranks * timing.compute_ns / max(1, eq7_dear_ns(timing))


def eq7_dear_ns(timing: Timing) -> int:
    """max(ff, ag) + max(bp, rs): DeAR, where everything overlaps that may."""
    half_ns = _half_ns(timing)
    return max(timing.forward_ns, half_ns) + max(timing.backward_ns, half_ns)


def eq8_allreduce_ns(timing: Timing) -> int:
    """Ff + max(bp, ar): all-reduces under backward, a forward that waits for all of them."""
    return timing.forward_ns + max(timing.backward_ns, 2 * _half_ns(timing))


def dear_ideal_ns(timing: Timing) -> int:
    """What DeAR is measured by: Eq. 7, or the bound where that is larger."""
    return max(eq7_dear_ns(timing), bound_ns(timing))


def _half_ns(timing: Timing) -> int:
    """rs, and ag: rounded down, as a bound must be."""
    link = timing.link
    moved_bits = 8 * (link.ranks - 1) * timing.size_bytes
    return moved_bits * 10**9 // (link.ranks * link.bandwidth_bps)
