"""Measures how a worker's threads send: handing over, requesting, noticing acknowledgements.

*Handing over*: the time from one push to the next one that was ready by then, if no acknowledgement
came in between, so that the policy had nothing to wait for.

*The request* of a pull waits in the same connection as the pushes, so it arrives behind those that
were handed over before it. Let push j be the last one that arrived at the server before the request
of push i. Then this request was made after j was handed over and before the next push was. So each
request bounds its lag from both sides. For each x, the share of lags up to x is estimated from the
requests whose bounds decide the question; if no bounds do, x counts as possible for all. Lags
scatter, because a thread may already be running or may have to wake up first. The number of pushes
that get in between therefore differs between workers, which drives the workers apart. A single lag
for all requests would hide this.

*Standing still*: while all cores compute, the kernel may leave a server that shares them without
one for a tenth of a second. What was sent to it meanwhile arrives together. The time of a push
beyond that of its bytes, since it was sent and since the worker's push before it arrived, tells how
long, as far as the server did nothing meanwhile, for no worker.

*An acknowledgement* passes the threads of two processes, at both ends of the connection. Its time
is measured while no answer is on its way to that worker. A policy that sends after it has noticed
an acknowledgement waits for this time each time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from byteprophet.job.times import Int64Array
from byteprophet.order_statistics import distinct, groups, median

LAGS = 32
"""Number of equally frequent lags that represent all."""
_SAMPLES = 20_000
_SHARING_NS = 10_000_000
"""Two turns of 5 ms (``barriered.py``): as long as a thread may wait where cores are shared fairly,
which is in a replay without this."""
_NEVER_NS = np.iinfo(np.int64).max


def hand_over_ns(ready_ns: Int64Array, sent_ns: Int64Array, acked_ns: Int64Array) -> int | None:
    """One worker's time of handing over; None if it never had two to send. Shapes: (transfers,)."""
    order = np.argsort(sent_ns, kind="stable")
    ready_ns, sent_ns = ready_ns[order], sent_ns[order]
    acked_ns = np.sort(acked_ns)
    acks = np.searchsorted(acked_ns, sent_ns, "right")
    free = (acks[1:] == acks[:-1]) & (ready_ns[1:] <= sent_ns[:-1])
    gaps_ns = np.diff(sent_ns)[free]
    return int(median(gaps_ns)) if len(gaps_ns) else None


def request_lags_ns(
    sent_ns: Int64Array, arrived_ns: Int64Array, asked_ns: Int64Array
) -> Int64Array:
    """``LAGS`` lags of one worker's transfers to one server, or none. Shapes: (transfers,)."""
    if not len(sent_ns):
        return np.zeros(0, np.int64)
    order = np.argsort(sent_ns, kind="stable")[-_SAMPLES:]
    sent_ns, arrived_ns, asked_ns = sent_ns[order], arrived_ns[order], asked_ns[order]
    # They use one connection, so they arrive in the order in which they were handed over.
    arrived_ns = np.maximum.accumulate(arrived_ns)
    behind = np.searchsorted(arrived_ns, asked_ns, "right") - 1
    behind = np.maximum(behind, np.arange(len(sent_ns)))
    least_ns = np.sort(sent_ns[behind] - sent_ns)
    most_ns = np.sort(np.append(sent_ns, _NEVER_NS)[behind + 1] - sent_ns)
    known_ns = distinct(np.concatenate([least_ns, most_ns[most_ns < _NEVER_NS // 2]]))
    longer = len(least_ns) - np.searchsorted(least_ns, known_ns, "left")
    shorter = np.searchsorted(most_ns, known_ns, "right")
    decided = shorter + longer
    share = np.where(decided == 0, 1.0, shorter / np.maximum(1, decided))
    share = np.maximum.accumulate(share)
    wanted = (np.arange(LAGS) + 0.5) / LAGS
    found: Int64Array = known_ns[np.minimum(np.searchsorted(share, wanted), len(known_ns) - 1)]
    return found


def of_all(lags_ns: Sequence[Int64Array]) -> tuple[int, ...]:
    """``LAGS`` or more lags that represent those of several connections; none if there are none."""
    known_ns = np.sort(np.concatenate([np.zeros(0, np.int64), *lags_ns]))
    return tuple(known_ns[len(known_ns) // LAGS // 2 :: max(1, len(known_ns) // LAGS)].tolist())


def usual(stood_ns: Sequence[Int64Array]) -> tuple[int, ...]:
    """``LAGS`` times that represent those of several workers; none if most of them are 0.

    A prediction is a median of iterations, which rare ones do not change.
    """
    times_ns = of_all(stood_ns)
    return times_ns if times_ns and median(np.array(times_ns)) > 0 else ()


def acknowledgement_ns(
    arrived_ns: Int64Array, acked_ns: Int64Array, answered_ns: Int64Array, pulled_ns: Int64Array
) -> int | None:
    """Time from a push's arrival until its worker knows; None if answers always were in front.

    Takes one worker's transfers to one server. Shapes: (pushes,) and (answers,).
    """
    begun = np.searchsorted(np.sort(answered_ns), acked_ns, "right")
    ended = np.searchsorted(np.sort(pulled_ns), arrived_ns, "left")
    alone_ns = (acked_ns - arrived_ns)[begun == ended]
    return int(median(alone_ns)) if len(alone_ns) else None


def standing_ns(
    iterations: Int64Array,
    sent_ns: Int64Array,
    arrived_ns: Int64Array,
    passing_ns: npt.NDArray[np.float64],
    active_ns: Int64Array,
) -> Int64Array:
    """How long the latest push of each iteration of a worker stood still, shape (iterations,).

    ``passing_ns``: what each takes on its link if nothing else does. Shapes: (pushes,).
    ``active_ns``: when servers did anything, in ascending order.
    """
    order = np.argsort(arrived_ns, kind="stable")
    iterations, sent_ns, arrived_ns = iterations[order], sent_ns[order], arrived_ns[order]
    before_ns = np.append(sent_ns[:1], arrived_ns[:-1])
    stood_ns = arrived_ns - np.maximum(sent_ns, before_ns) - passing_ns[order]
    longest_ns = []
    for mine in groups(iterations):
        latest = mine[np.argmax(stood_ns[mine])]
        until_ns = arrived_ns[latest]
        since_ns = until_ns - max(0, int(stood_ns[latest]))
        first, last = np.searchsorted(active_ns, [since_ns, until_ns])
        edges_ns = np.concatenate([[since_ns], active_ns[first:last], [until_ns]])
        longest_ns.append(np.diff(edges_ns).max())
    found_ns = np.array(longest_ns, np.int64)
    return np.where(found_ns > _SHARING_NS, found_ns, 0)
