"""What a worker's link carried, one partition at a time, using only times at both ends.

Partitions that are in flight together share the link, and end one after the other. So each one gets
the time from the end of the previous partition, or from its own sending if that is later, until its
own end. The link is then busy exactly while anything is in flight, and each partition's bytes
pass during its own stretch. ``monitor/estimate.py`` measures bandwidth with the same busy time.

    push   from its sending to its arrival at the server, or without servers' tables to its
           acknowledgement
    pull   from the answer's departure, or else from the acknowledgement, to its arrival
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from byteprophet.diagnose.recorded import Ints, Recorded

DIRECTIONS = ("push", "pull")


@dataclass(frozen=True)
class Carried:
    """Ordered, disjoint stretches, shape (n,) each: start, end, and the row of the transfer."""

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
