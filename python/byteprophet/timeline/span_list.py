"""Collects spans one by one from a foreign trace, and makes a table of them."""

from __future__ import annotations

import reprlib
from array import array
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
_COLUMNS = ("begin_ns", "end_ns", "size_bytes", "iteration", "name", "kind", "track")


class SpanList:
    """Spans of one role. ``source`` is the file that errors name.

    A track is whatever the trace puts spans on: a thread, a stream, a tensor. It becomes one lane,
    or several if its spans overlap without being nested.
    """

    def __init__(self, source: Path) -> None:
        self._source = source
        self._names: dict[str, int] = {}
        self._tracks: dict[Hashable, int] = {}
        self._columns = [array("q") for _ in _COLUMNS]

    def __len__(self) -> int:
        return len(self._columns[0])

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
        """Adds one span. Raises ``UserError`` if its times, size or iteration are out of range."""
        if not (0 <= begin_ns < _LATEST_NS and 0 <= duration_ns < _LATEST_NS):
            begin, duration = reprlib.repr(begin_ns), reprlib.repr(duration_ns)
            raise self._wrong(name, f"begin at {begin} ns and take {duration} ns")
        if not (0 <= size_bytes < _MOST_BYTES and 0 <= iteration < 2**32):
            size = reprlib.repr(size_bytes)
            raise self._wrong(name, f"have {size} bytes or be in iteration {iteration}")
        name_index = self._names.setdefault(name, len(self._names))
        track_index = self._tracks.setdefault(track, len(self._tracks))
        end_ns = begin_ns + duration_ns
        row = (begin_ns, end_ns, size_bytes, iteration, name_index, kind, track_index)
        for column, value in zip(self._columns, row, strict=True):
            column.append(value)

    def events(self, rank: int) -> Events:
        """The table, sorted by start, of worker ``rank``. Its clock is the wall clock.

        The machine is unknown, because a foreign trace does not identify the clock it uses. A trace
        that begins at 0 is moved by a nanosecond, because a time of 0 is one that is not known.
        """
        columns = dict(zip(_COLUMNS, map(np.asarray, self._columns), strict=True))
        tracks = columns.pop("track")
        rows = np.zeros(len(self), SPAN)
        for name, column in columns.items():
            rows[name] = column
        lanes = np.zeros(len(self), np.int64)
        count = 0
        by_track = np.argsort(tracks, kind="stable")
        for here in filter(len, np.split(by_track, np.flatnonzero(np.diff(tracks[by_track])) + 1)):
            lanes[here] = count + nested_lanes(rows["begin_ns"][here], rows["end_ns"][here])
            count = int(lanes[here].max()) + 1
            if count > _MOST_LANES:
                raise UserError(f"{self._source}: needs more than {_MOST_LANES} lanes")
        rows["lane"] = lanes
        rows = rows[outer_first(rows["begin_ns"], rows["end_ns"])]
        if len(rows) and rows["begin_ns"][0] == 0:
            rows["begin_ns"] += 1
            rows["end_ns"] += 1
        first_ns = int(rows["begin_ns"][0]) if len(rows) else 0
        origin = Origin(f"worker-{rank}", rank, "", first_ns, first_ns)
        names = {index: valid_text(name) for name, index in self._names.items()}
        return Events(SPANS, origin, rows, names)

    def _wrong(self, name: str, what: str) -> UserError:
        return UserError(f"{self._source}: {reprlib.repr(name)}: cannot {what}")


def valid_text(text: str) -> str:
    r"""``text`` without lone surrogates, so that it can be encoded; they become escapes, \ud83d."""
    return text.encode("utf-8", "backslashreplace").decode()
