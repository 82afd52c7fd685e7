"""When the device of a paced worker was busy, from the spans of a recorded run."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from byteprophet.timeline.read_events import load_rank
from byteprophet.timeline.tables import SPANS, Kind

Interval = tuple[int, int]
"""Begin and end, in nanoseconds of the monotonic clock."""


def read_busy(run_directory: Path, rank: int) -> list[Interval]:
    """The intervals in which layers of rank ``rank`` ran, in order.

    Layers that touch or overlap form one interval. Between intervals, the device waited, mostly for
    parameters. Raises ``UserError`` if the run has no spans.
    """
    rows = load_rank(run_directory, SPANS, rank).rows
    layers = rows[np.isin(rows["kind"], (Kind.FORWARD, Kind.BACKWARD))]
    busy: list[Interval] = []
    for begin_ns, end_ns in np.sort(layers[["begin_ns", "end_ns"]]).tolist():
        if busy and begin_ns <= busy[-1][1]:
            since_ns, until_ns = busy.pop()
            busy.append((since_ns, max(until_ns, end_ns)))
        elif begin_ns < end_ns:
            busy.append((begin_ns, end_ns))
    return busy
