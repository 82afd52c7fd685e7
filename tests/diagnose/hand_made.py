"""Small recorded jobs, written down in milliseconds, whose diagnosis one can do in the head.

``ps_job``: two workers, a server, one tensor "w"; iterations 11 to 13 of 100 ms each, all alike:

    worker 0, 1   wait 0-30 (update 25-29), forward 30-50, backward 50-90, nothing 90-100
    gradient      ready at 90; sent by worker 0 at 92, by worker 1 at 101, of the next iteration 1
    server        has worker 0's at 104, worker 1's at 110; sums 112-114; answers at 116
    answers       are at worker 0 at 124, at worker 1 at 120

``collective_job``: two ranks, a collective that rank 1 begins 20 ms after rank 0. ``stock_job``:
no transfers, and a wait for all gradients behind backward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from byteprophet.diagnose.recorded import Recorded
from byteprophet.diagnose.recorded import recorded as recorded_of
from byteprophet.timeline.aligned import align_events
from byteprophet.timeline.events import Events, events_path, save_events
from byteprophet.timeline.tables import (
    SERVED,
    SERVED_TABLE,
    SPAN,
    SPANS,
    TRANSFER,
    TRANSFERS,
    Kind,
    TableKind,
)

from ..timeline.made_up import SECOND, origin, rows_of

MS = 1_000_000
START_NS = 1000 * SECOND
"""Of iteration 11, on the clocks of ``origin``."""

NUMBERS = (11, 12, 13)
SIZE_BYTES = 1_200_000

CONFIG: dict[str, Any] = {
    "workers": 2,
    "servers": 1,
    "scheduler": "fifo",
    "partition_bytes": 4_096_000,
    "settings": {"partition_bytes": 4_096_000},
    "bandwidth_bps": 1_000_000_000,
}


def at(iteration: int, time_ms: float) -> int:
    """A time in the iteration with this number, in ns."""
    return START_NS + int((100 * (iteration - NUMBERS[0]) + time_ms) * MS)


def span(iteration: int, kind: Kind, name: int, begin_ms: float, end_ms: float) -> dict[str, int]:
    """A row of spans."""
    return {
        "begin_ns": at(iteration, begin_ms),
        "end_ns": at(iteration, end_ms),
        "iteration": iteration,
        "name": name,
        "kind": kind,
    }


def table(
    kind: TableKind, role: str, rows: Sequence[dict[str, int]], names: Sequence[str] = ()
) -> Events:
    """A table of events of ``role``."""
    dtype = {"spans": SPAN, "transfers": TRANSFER, "served": SERVED}[kind.name]
    return Events(kind, origin(role), rows_of(dtype, rows), dict(enumerate(names)))


def ps_job() -> list[Events]:
    """As above."""
    tables = []
    for rank, (sent_ms, pulled_ms) in enumerate([(92, 124), (101, 120)]):
        spans = []
        transfers = []
        for number in NUMBERS:
            spans += [
                span(number, Kind.ITERATION, 1, 0, 100),
                span(number, Kind.WAIT, 0, 0, 30),
                span(number - 1, Kind.UPDATE, 0, 125, 129),
                span(number, Kind.FORWARD, 0, 30, 50),
                span(number, Kind.BACKWARD, 0, 50, 90),
            ]
            transfers.append(
                {
                    "size_bytes": SIZE_BYTES,
                    "ready_ns": at(number, 90),
                    "sent_ns": at(number, sent_ms),
                    "acked_ns": at(number, 118),
                    "pulled_ns": at(number, pulled_ms),
                    "iteration": number,
                    "priority": -1,
                }
            )
        role = f"worker-{rank}"
        tables += [
            table(SPANS, role, spans, ["w", "iteration"]),
            table(TRANSFERS, role, transfers, ["w"]),
        ]
    served = [
        {
            "size_bytes": SIZE_BYTES,
            "arrived_ns": at(number, arrived_ms),
            "sum_begin_ns": at(number, 112),
            "sum_end_ns": at(number, 114),
            "asked_ns": at(number, 111),
            "answered_ns": at(number, 116),
            "worker": rank,
            "round": number - NUMBERS[0] + 1,
        }
        for number in NUMBERS
        for rank, arrived_ms in enumerate([104, 110])
    ]
    return [*tables, table(SERVED_TABLE, "server-0", served)]


def collective_job() -> list[Events]:
    """Forward to 20, backward to 60 or 75, the collective to 90, the optimizer to 98."""
    tables = []
    for rank, (backward_ms, begin_ms) in enumerate([(60, 50), (75, 70)]):
        spans = []
        for number in NUMBERS:
            spans += [
                span(number, Kind.ITERATION, 0, 0, 100),
                span(number, Kind.FORWARD, 1, 0, 20),
                span(number, Kind.BACKWARD, 1, 20, backward_ms),
                span(number, Kind.COLLECTIVE, 2, begin_ms, 90),
                span(number, Kind.UPDATE, 3, 90, 98),
            ]
        names = ["iteration", "layer", "bucket 0", "optimizer"]
        tables.append(table(SPANS, f"worker-{rank}", spans, names))
    return tables


def stock_job() -> list[Events]:
    """Forward to 20, backward to 60, a wait to 100; pushes come at 70 and 80, answers go at 86."""
    tables = []
    for rank in range(2):
        spans = []
        for number in NUMBERS:
            spans += [
                span(number, Kind.ITERATION, 0, 0, 100),
                span(number, Kind.FORWARD, 1, 0, 20),
                span(number, Kind.BACKWARD, 1, 20, 60),
                span(number, Kind.WAIT, 2, 60, 100),
            ]
        tables.append(
            table(SPANS, f"worker-{rank}", spans, ["iteration", "layer", "all gradients"])
        )
    served = [
        {
            "size_bytes": SIZE_BYTES,
            "arrived_ns": at(number, arrived_ms),
            "sum_begin_ns": at(number, 82),
            "sum_end_ns": at(number, 84),
            "asked_ns": at(number, 83),
            "answered_ns": at(number, 86),
            "worker": rank,
            "round": number,
        }
        for number in NUMBERS
        for rank, arrived_ms in enumerate([70, 80])
    ]
    return [*tables, table(SERVED_TABLE, "server-0", served)]


def save_run(directory: Path, events: Sequence[Events], config: Mapping[str, Any] = CONFIG) -> None:
    """A run directory with these events, and their ``config.toml``."""
    directory.mkdir(exist_ok=True)
    for one in events:
        save_events(events_path(directory, one.table, one.origin.role), one)
    (directory / "config.toml").write_text(tomli_w.dumps(config))


def recorded(events: Sequence[Events], config: Mapping[str, Any]) -> Recorded:
    """What ``events`` say that were never saved."""
    return recorded_of(events, align_events(events), config)
