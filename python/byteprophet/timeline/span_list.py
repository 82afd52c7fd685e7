"""Spans collected one by one from a foreign trace, and made into a table."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path

import numpy as np

from byteprophet.errors import UserError
from byteprophet.timeline.events import Events, Origin
from byteprophet.timeline.lanes import nested_lanes, outer_first
from byteprophet.timeline.tables import SPAN, SPANS, Kind

_LATEST_NS = 2**62
_MOST_LANES = 2**16
_MOST_BYTES = 2**63


class SpanList:
    """Spans of one role; ``source`` is what errors name.

    A track is whatever the trace puts spans on: a thread, a stream, a tensor. It becomes one lane,
    or, where its spans overlap without being nested, as many as needed.
    """

    def __init__(self, source: Path) -> None:
        self._source = source
        self._names: dict[str, int] = {}
        self._tracks: dict[Hashable, int] = {}
        self._rows: list[tuple[int, int, int, int, int, int, int]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(
        self,
        kind: Kind,
        name: str,
        begin_ns: int,
        duration_ns: int,
        track: Hashable,
        size_bytes: int = 0,
        iteration: int = 0,
    ) -> None:
        """One span; ``UserError`` if its times or size cannot be."""
        if not (0 <= begin_ns < _LATEST_NS and 0 <= duration_ns < _LATEST_NS):
            raise UserError(
                f"{self._source}: {name!r}: cannot begin at {begin_ns} ns and take {duration_ns} ns"
            )
        if not (0 <= size_bytes < _MOST_BYTES and 0 <= iteration < 2**32):
            raise UserError(
                f"{self._source}: {name!r}: cannot have {size_bytes} bytes or be in iteration "
                f"{iteration}"
            )
        name_index = self._names.setdefault(name, len(self._names))
        track_index = self._tracks.setdefault(track, len(self._tracks))
        end_ns = begin_ns + duration_ns
        self._rows.append((begin_ns, end_ns, size_bytes, iteration, name_index, track_index, kind))

    def events(self, rank: int) -> Events:
        """The table, by begin, of a worker of ``rank`` whose clock is its wall clock.

        No machine: what a foreign trace calls a host says nothing about whose clock it is.
        """
        columns = np.array(self._rows, np.int64).reshape(-1, 7).T
        rows = np.zeros(len(self._rows), SPAN)
        for name, column in zip(
            ("begin_ns", "end_ns", "size_bytes", "iteration", "name"), columns[:5], strict=True
        ):
            rows[name] = column
        rows["kind"] = columns[6]
        tracks, lanes = columns[5], np.zeros(len(rows), np.int64)
        count = 0
        for track in range(len(self._tracks)):
            here = np.flatnonzero(tracks == track)
            lanes[here] = count + nested_lanes(columns[0][here], columns[1][here])
            count = int(lanes[here].max()) + 1
        if count > _MOST_LANES:
            raise UserError(f"{self._source}: needs {count} lanes: more than {_MOST_LANES}")
        rows["lane"] = lanes
        rows = rows[outer_first(columns[0], columns[1])]
        first_ns = int(rows["begin_ns"][0]) if len(rows) else 0
        origin = Origin(f"worker-{rank}", rank, "", first_ns, first_ns)
        return Events(SPANS, origin, rows, {index: name for name, index in self._names.items()})
