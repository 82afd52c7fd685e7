"""Per gradient, in forward order: its wait and its transfer, as in the Prophet paper's Figure 11.

wait       from the gradient ready to its first partition sent
transfer   from there to the sum of its last partition pulled
exposed    what the thread that computes waited for it (``breakdown.py``)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from byteprophet.diagnose.breakdown import Breakdown
from byteprophet.diagnose.recorded import Recorded
from byteprophet.timeline.tables import tensor_of


@dataclass(frozen=True)
class Gradient:
    """Medians over iterations, of one worker. ``size_bytes``: in one direction."""

    name: str
    size_bytes: int
    wait_ns: int
    transfer_ns: int
    exposed_ns: int


def gradients(run: Recorded, worker: int, found: Breakdown) -> Sequence[Gradient]:
    """Of the worker with this index; empty where it recorded no transfers."""
    rows = run.workers[worker].transfers
    known = (rows["ready_ns"] > 0) & (rows["sent_ns"] > 0) & (rows["pulled_ns"] > 0)
    rows = rows[known & np.isin(rows["iteration"], run.iterations)]
    # First in forward order has the highest of the negative priorities; what has no place is last.
    urgency = np.where(rows["priority"] < 0, -rows["priority"].astype(np.int64), 2**32)
    rows = rows[np.lexsort((tensor_of(rows), urgency))]
    numbers = tensor_of(rows)
    made = []
    for number in dict.fromkeys(numbers.tolist()):
        mine = rows[numbers == number]
        _, place = np.unique(mine["iteration"], return_inverse=True)
        count = int(place.max()) + 1
        far = np.iinfo(np.int64).max
        ready_ns, sent_ns = np.full(count, far), np.full(count, far)
        pulled_ns = np.zeros(count, np.int64)
        np.minimum.at(ready_ns, place, mine["ready_ns"])
        np.minimum.at(sent_ns, place, mine["sent_ns"])
        np.maximum.at(pulled_ns, place, mine["pulled_ns"])
        name = run.tensor(number << 16)
        waited_ns = found.waits_ns.get(name)
        made.append(
            Gradient(
                name=name,
                size_bytes=int(mine["size_bytes"].sum()) // count,
                wait_ns=int(np.median(sent_ns - ready_ns)),
                transfer_ns=int(np.median(pulled_ns - sent_ns)),
                exposed_ns=0 if waited_ns is None else int(np.median(waited_ns[worker])),
            )
        )
    return made
