"""Wait and transfer of each gradient, in forward order, as in the Prophet paper's Figure 11.

wait       from when the gradient is ready to when its first partition is sent
transfer   from then until the sum of its last partition has been pulled
exposed    how long the training thread waited for it (``breakdown.py``)

Gradients that share a buffer count as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from byteprophet.diagnose.breakdown import Breakdown
from byteprophet.diagnose.recorded import Recorded
from byteprophet.order_statistics import median
from byteprophet.timeline.tables import tensor_of


@dataclass(frozen=True)
class Gradient:
    """Medians over one worker's iterations. ``size_bytes``: in one direction."""

    name: str
    size_bytes: int
    wait_ns: int
    transfer_ns: int
    exposed_ns: int


def gradients(run: Recorded, worker: int, found: Breakdown) -> Sequence[Gradient]:
    """Gradients of the worker with index ``worker``; empty if it recorded no transfers."""
    rows = run.workers[worker].transfers
    known = (rows["ready_ns"] > 0) & (rows["sent_ns"] > 0) & (rows["pulled_ns"] > 0)
    rows = rows[known & np.isin(rows["iteration"], run.iterations)]
    # The first in forward order has the highest of the negative priorities; others come last.
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
        waits_ns = [
            found.waits_ns[parameter][worker]
            for parameter in run.fused.of(name)
            if parameter in found.waits_ns
        ]
        made.append(
            Gradient(
                name=name,
                size_bytes=int(mine["size_bytes"].sum()) // count,
                wait_ns=int(median(sent_ns - ready_ns)),
                transfer_ns=int(median(pulled_ns - sent_ns)),
                exposed_ns=int(median(np.sum(waits_ns, axis=0))) if waits_ns else 0,
            )
        )
    return made
