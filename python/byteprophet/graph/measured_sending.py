"""How a worker's threads send: what handing over a push takes, and how late its pull is requested.

*Handing over*: from one push to the next that was ready by then, where no acknowledgement came in
between, so that the policy had nothing to wait for.

*The request* stands in the connection of the pushes, so it arrives behind those that were handed
over before it. If push j is the last that arrived at the server before the request of push i, that
was made after j was handed over and before the next was. So each request bounds its lag from both
sides; the lag of all is their median: as many are known to be longer as are known to be shorter.
"""

from __future__ import annotations

import numpy as np

from byteprophet.graph.model import Int64Array

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


def request_lag_ns(sent_ns: Int64Array, arrived_ns: Int64Array, asked_ns: Int64Array) -> int | None:
    """Of one worker's transfers to one server; None without any. Shapes: (transfers,)."""
    if not len(sent_ns):
        return None
    order = np.argsort(sent_ns, kind="stable")[-_SAMPLES:]
    sent_ns, arrived_ns, asked_ns = sent_ns[order], arrived_ns[order], asked_ns[order]
    # One connection: they arrive in the order in which they were handed over.
    arrived_ns = np.maximum.accumulate(arrived_ns)
    behind = np.searchsorted(arrived_ns, asked_ns, "right") - 1
    behind = np.maximum(behind, np.arange(len(sent_ns)))
    least_ns = np.sort(sent_ns[behind] - sent_ns)
    most_ns = np.sort(np.append(sent_ns, _NEVER_NS)[behind + 1] - sent_ns)
    known_ns = np.unique(np.concatenate([least_ns, most_ns]))
    longer = len(least_ns) - np.searchsorted(least_ns, known_ns, "left")
    shorter = np.searchsorted(most_ns, known_ns, "right")
    return int(known_ns[int(np.argmax(shorter >= longer))])
