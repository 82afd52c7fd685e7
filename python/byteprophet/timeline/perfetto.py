"""Writes a timeline for https://ui.perfetto.dev: Chrome's JSON, with arrows from push to pull.

Each role is a process, workers first. Two slices of a track are disjoint or nested:

    iterations             as recorded; else from one iteration's first ready gradient to the next's
    forward (lane 0)       spans, one track per lane
    queued, push, pull     worker: ready to sent, sent to acknowledged, acknowledged to pulled
    arrived, sum, answer   server: arrival to start of the sum, the sum, pull's request to answer
    send, receive          both: ps-lite to the kernel; receiving thread to unpacked

Overlapping slices go on several tracks: ``push 0``, ``push 1``. A counter shows the bytes that a
worker has sent and that are not acknowledged. Slices without a known start or end are left out.
If clocks disagree, an arrow's points may be out of order; the point at the sum is then left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from byteprophet.errors import UserError
from byteprophet.timeline.clocks import Clock, on_one_clock, wall_clock
from byteprophet.timeline.events import Events
from byteprophet.timeline.joined import served_rows
from byteprophet.timeline.perfetto_roles import (
    partition_labels,
    show_iterations,
    show_messages,
    show_served,
    show_spans,
    show_transfers,
)
from byteprophet.timeline.perfetto_tracks import Place, Tracks
from byteprophet.timeline.tables import MESSAGES, SERVED_TABLE, SPANS, TRANSFERS
from byteprophet.timeline.trace_file import new_trace_file


@dataclass(frozen=True)
class Written:
    """A file that was written, and the number of its slices and arrows."""

    path: Path
    slices: int
    arrows: int


def write_perfetto(path: Path, events: Sequence[Events], clock: Clock | None = None) -> Written:
    """Writes a timeline of ``events`` to ``path``, gzipped if its name ends in ``.gz``.

    ``clock`` converts the roles' times to one clock; the default is their machines' wall clocks.
    Raises ``UserError`` if there is nothing to show.
    """
    events = on_one_clock(events, clock or wall_clock(events))
    origin_ns = _earliest_ns(events)
    if origin_ns is None:
        raise UserError(f"{path}: not written: nothing was recorded")
    with new_trace_file(path) as file:
        roles = _roles(events)
        tracks = Tracks(file, origin_ns, next_tid=len(roles) + 1)
        label = partition_labels(events)
        places: dict[int, Mapping[str, Place]] = {}
        for pid, role in enumerate(roles, 1):
            file.process(pid, role, pid)
            mine = {i: table for i, table in enumerate(events) if table.origin.role == role}
            show_iterations(tracks, pid, list(mine.values()))
            show_spans(tracks, pid, [table for table in mine.values() if table.table is SPANS])
            for index, table in mine.items():
                if table.table is TRANSFERS:
                    places[index] = show_transfers(tracks, pid, table.rows, label)
                elif table.table is SERVED_TABLE:
                    places[index] = show_served(tracks, pid, table.rows, label)
                elif table.table is MESSAGES:
                    show_messages(tracks, pid, table.rows, label)
        _draw_arrows(tracks, events, places)
        file.end(
            {
                "origin_ns": origin_ns,
                "lost": sum(table.lost for table in events),
                "cut_off": sorted({table.origin.role for table in events if not table.whole}),
            }
        )
    return Written(path, file.slices, file.arrows)


def _earliest_ns(events: Sequence[Events]) -> int | None:
    times = [
        table.rows[name][table.rows[name] != 0] for table in events for name in table.table.times
    ]
    return min((int(known.min()) for known in times if len(known)), default=None)


def _roles(events: Sequence[Events]) -> list[str]:
    """The names of the roles: workers by rank, then servers by rank."""
    places: dict[str, tuple[int, int]] = {}
    for table in events:
        role = table.origin.role
        places[role] = (int(role.startswith("server")), table.origin.rank)
    return sorted(places, key=lambda role: (places[role], role))


def _draw_arrows(
    tracks: Tracks, events: Sequence[Events], places: Mapping[int, Mapping[str, Place]]
) -> None:
    """Draws an arrow from the start of each push, via the start of its sum, to its pull's end."""
    number = 0
    for index, (tables, rows) in served_rows(events).items():
        push, pull = places[index]["push"], places[index]["pull"]
        for row, (table, served) in enumerate(zip(tables.tolist(), rows.tolist(), strict=True)):
            begin, end = push.begin(row), pull.end(row)
            middle = places[table]["sum"].begin(served) if table >= 0 else None
            if begin is None:
                continue
            if middle and not begin[2] <= middle[2] <= (end or middle)[2]:
                middle = None
            points = [point for point in (begin, middle, end) if point is not None]
            if len(points) > 1:
                number += 1
                tracks.arrow(number, points)
