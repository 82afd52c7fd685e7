"""What a worker's link carried when, one partition at a time, from times at its ends alone.

Partitions that are under way together share the link, and end one after the other. So each is
given the time from the end of the one before, or from when it was sent if that is later, until its
own end: then the link was busy exactly while anything was under way, and each partition's bytes
passed in its own stretch. ``network/estimate.py`` measures bandwidth by the same busy time.

    push   from sent to its arrival at the server; without servers' tables to its acknowledgement
    pull   from the answer's departure, or else the acknowledgement, to its end
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from byteprophet.diagnose.recorded import Ints, Recorded

DIRECTIONS = ("push", "pull")


@dataclass(frozen=True)
class Carried:
    """Shape (n,) each, in order, disjoint: from when to when, and the row of the transfer."""

    begin_ns: Ints
    end_ns: Ints
    row: Ints
    size_bytes: Ints


def carried(run: Recorded, worker: int, direction: str) -> Carried:
    """What the link of the worker with this index carried; ``direction``: "push" or "pull"."""
    rows, served = run.workers[worker].transfers, run.workers[worker].served
    known = served >= 0
    at = run.served[served[known]]
    if direction == "push":
        begins_ns, ends_ns = rows["sent_ns"].copy(), rows["acked_ns"].copy()
        ends_ns[known] = np.where(at["arrived_ns"] > 0, at["arrived_ns"], ends_ns[known])
    else:
        begins_ns, ends_ns = rows["acked_ns"].copy(), rows["pulled_ns"].copy()
        begins_ns[known] = np.where(at["answered_ns"] > 0, at["answered_ns"], begins_ns[known])
    there = np.flatnonzero((begins_ns > 0) & (ends_ns > 0))
    order = there[np.lexsort((begins_ns[there], ends_ns[there]))]
    ends_ns = ends_ns[order]
    free_ns = np.append(0, ends_ns[:-1])[: len(order)]
    begins_ns = np.minimum(ends_ns, np.maximum(begins_ns[order], free_ns))
    return Carried(begins_ns, ends_ns, order, rows["size_bytes"][order].astype(np.int64))
