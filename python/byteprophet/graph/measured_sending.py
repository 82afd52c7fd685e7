"""How a worker's threads send: handing over, requesting, hearing of acknowledgements.

*Handing over*: from one push to the next that was ready by then, where no acknowledgement came in
between, so that the policy had nothing to wait for.

*The request* stands in the connection of the pushes, so it arrives behind those that were handed
over before it. If push j is the last that arrived at the server before the request of push i, that
was made after j was handed over and before the next was. So each request bounds its lag from both
sides. That a lag is at most x is as frequent as among the requests whose bounds decide it; where
none's do, x fits all. Lags scatter, from a thread that runs already to one that has to be woken:
how many pushes get in between differs from worker to worker, and by that workers get apart, which
one lag for all would hide.

*An acknowledgement* passes the threads of two processes, at both ends of the connection. What that
takes is seen where no answer was on its way to that worker meanwhile. A policy that sends when it
has heard of what it sent before waits so long each time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from byteprophet.graph.model import Int64Array

LAGS = 32
"""Equally frequent lags that stand for all."""
_SAMPLES = 20_000
_NEVER_NS = np.iinfo(np.int64).max


def hand_over_ns(ready_ns: Int64Array, sent_ns: Int64Array, acked_ns: Int64Array) -> int | None:
    """Of one worker's transfers; None where it never had two to send. Shapes: (transfers,)."""
    order = np.argsort(sent_ns, kind="stable")
    ready_ns, sent_ns = ready_ns[order], sent_ns[order]
    acked_ns = np.sort(acked_ns)
    acks = np.searchsorted(acked_ns, sent_ns, "right")
    free = (acks[1:] == acks[:-1]) & (ready_ns[1:] <= sent_ns[:-1])
    gaps_ns = np.diff(sent_ns)[free]
    return int(np.median(gaps_ns)) if len(gaps_ns) else None


def request_lags_ns(
    sent_ns: Int64Array, arrived_ns: Int64Array, asked_ns: Int64Array
) -> Int64Array:
    """``LAGS`` of one worker's transfers to one server, shape (transfers,); none without any."""
    if not len(sent_ns):
        return np.zeros(0, np.int64)
    order = np.argsort(sent_ns, kind="stable")[-_SAMPLES:]
    sent_ns, arrived_ns, asked_ns = sent_ns[order], arrived_ns[order], asked_ns[order]
    # One connection: they arrive in the order in which they were handed over.
    arrived_ns = np.maximum.accumulate(arrived_ns)
    behind = np.searchsorted(arrived_ns, asked_ns, "right") - 1
    behind = np.maximum(behind, np.arange(len(sent_ns)))
    least_ns = np.sort(sent_ns[behind] - sent_ns)
    most_ns = np.sort(np.append(sent_ns, _NEVER_NS)[behind + 1] - sent_ns)
    known_ns = np.unique(np.concatenate([least_ns, most_ns[most_ns < _NEVER_NS // 2]]))
    longer = len(least_ns) - np.searchsorted(least_ns, known_ns, "left")
    shorter = np.searchsorted(most_ns, known_ns, "right")
    decided = shorter + longer
    share = np.where(decided == 0, 1.0, shorter / np.maximum(1, decided))
    share = np.maximum.accumulate(share)
    wanted = (np.arange(LAGS) + 0.5) / LAGS
    found: Int64Array = known_ns[np.minimum(np.searchsorted(share, wanted), len(known_ns) - 1)]
    return found


def of_all(lags_ns: Sequence[Int64Array]) -> tuple[int, ...]:
    """``LAGS`` that stand for those of several connections, or none without any."""
    known_ns = np.sort(np.concatenate([np.zeros(0, np.int64), *lags_ns]))
    return tuple(known_ns[len(known_ns) // LAGS // 2 :: max(1, len(known_ns) // LAGS)].tolist())


def acknowledgement_ns(
    arrived_ns: Int64Array, acked_ns: Int64Array, answered_ns: Int64Array, pulled_ns: Int64Array
) -> int | None:
    """From a push's arrival until its worker knows; None where answers were in front of all.

    Of one worker's transfers to one server. Shapes: (pushes,) and (answers,).
    """
    begun = np.searchsorted(np.sort(answered_ns), acked_ns, "right")
    ended = np.searchsorted(np.sort(pulled_ns), arrived_ns, "left")
    alone_ns = (acked_ns - arrived_ns)[begun == ended]
    return int(np.median(alone_ns)) if len(alone_ns) else None
