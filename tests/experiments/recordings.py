"""Small recordings, written as jobs leave them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from byteprophet.paced.busy import Interval
from byteprophet.paced.worker_config import WorkerResult
from byteprophet.timeline.events import Events, Origin, events_path, save_events
from byteprophet.timeline.tables import SPAN, SPANS, TRANSFER, TRANSFERS, Kind, Transfers

MS = 1_000_000


def transfer(tensor: int, iteration: int, **fields: int) -> Transfers:
    """One row; the tensor with number 1 is the first in forward order."""
    row = np.zeros(1, TRANSFER)
    given = {"key": tensor << 16, "iteration": iteration, "priority": -tensor, **fields}
    for name, value in given.items():
        row[name] = value
    return row


def write_recording(
    directory: Path, rows: Sequence[Transfers], busy: Sequence[Interval], measured: Interval
) -> None:
    """Of worker 0 of two, with one measured iteration."""
    recording = Events(TRANSFERS, Origin("worker-0", 0), np.concatenate(rows), {})
    save_events(events_path(directory, TRANSFERS, "worker-0"), recording)
    layers = np.zeros(len(busy), SPAN)
    layers["kind"] = Kind.FORWARD
    layers["begin_ns"], layers["end_ns"] = np.array(busy, np.int64).reshape(-1, 2).T
    spans = Events(SPANS, Origin("worker-0", 0), layers, {})
    save_events(events_path(directory, SPANS, "worker-0"), spans)
    for rank in range(2):
        WorkerResult(
            rank=rank,
            size=2,
            iteration_ns=(measured[1] - measured[0],),
            cpu_fraction=0.0,
            idle_cpu_fraction=0.0,
            parameters_sha256="ab",
            updates=6,
            scheduled_partitions=1,
            first_monotonic_ns=measured[0],
            last_monotonic_ns=measured[1],
        ).write(directory)
