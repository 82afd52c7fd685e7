"""Writes the tracks of a timeline's processes, and the slices on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from byteprophet.timeline.lanes import disjoint_lanes, nested_lanes, outer_first
from byteprophet.timeline.trace_file import TraceFile

Times = npt.NDArray[np.int64]

Text = Callable[[int], str]
"""Returns JSON for a row, given its index."""


@dataclass(frozen=True)
class Place:
    """The places of a table's slices: for each row the thread (0: no slice), start and end."""

    pid: int
    tids: npt.NDArray[np.int64]
    begins_ns: Times
    ends_ns: Times

    def begin(self, row: int) -> tuple[int, int, int] | None:
        """Process, thread and first moment of a slice; None if it has none."""
        if self.tids[row] == 0 or self.begins_ns[row] >= self.ends_ns[row]:
            return None
        return self.pid, int(self.tids[row]), int(self.begins_ns[row])

    def end(self, row: int) -> tuple[int, int, int] | None:
        """Like ``begin``, but the last moment. The slice's end is not part of it."""
        if self.tids[row] == 0 or self.begins_ns[row] >= self.ends_ns[row]:
            return None
        return self.pid, int(self.tids[row]), int(self.ends_ns[row]) - 1


class Tracks:
    """Adds threads to a file, numbered from ``next_tid`` on. Times are on one clock."""

    def __init__(self, file: TraceFile, origin_ns: int, next_tid: int) -> None:
        self.file = file
        self._origin_ns = origin_ns
        self._next_tid = next_tid

    def overlapping(
        self, pid: int, label: str, begins_ns: Times, ends_ns: Times, name: Text, arguments: Text
    ) -> Place:
        """Adds slices for all rows with known times, on as few tracks as keep them disjoint."""
        known = np.flatnonzero((begins_ns != 0) & (ends_ns != 0))
        lanes = disjoint_lanes(begins_ns[known], ends_ns[known])
        order = known[np.lexsort((ends_ns[known], begins_ns[known], lanes))]
        tids = np.zeros(len(begins_ns), np.int64)
        tids[known] = self._next_tid + lanes
        for lane in range(_count(lanes)):
            self._track(pid, f"{label} {lane}")
        self._slices(pid, tids, begins_ns, ends_ns, order, name, arguments)
        return Place(pid, tids, begins_ns, ends_ns)

    def nested(
        self, pid: int, label: str, begins_ns: Times, ends_ns: Times, name: Text, arguments: Text
    ) -> None:
        """Adds the slices of one lane, on one track. Slices that are not nested get more tracks."""
        lanes = nested_lanes(begins_ns, ends_ns)
        outer = outer_first(begins_ns, ends_ns)
        order = outer[np.argsort(lanes[outer], kind="stable")]
        tids = self._next_tid + lanes
        for lane in range(_count(lanes)):
            self._track(pid, f"{label} ({lane + 1})" if lane else label)
        self._slices(pid, tids, begins_ns, ends_ns, order, name, arguments)

    def counter(self, pid: int, name: str, unit: str, times_ns: Times, changes: Times) -> None:
        """Adds a counter to the process: the sum of ``changes`` so far, one value per time."""
        order = np.argsort(times_ns, kind="stable")
        times_ns, totals = times_ns[order], np.cumsum(changes[order])
        last = np.append(np.diff(times_ns) != 0, True)[: len(times_ns)]
        for time_ns, value in zip(times_ns[last].tolist(), totals[last].tolist(), strict=True):
            self.file.counter(pid, name, time_ns - self._origin_ns, unit, value)

    def arrow(self, number: int, points: list[tuple[int, int, int]]) -> None:
        """Adds an arrow through ``points``, which come from ``Place.begin`` and ``Place.end``."""
        moved = [(pid, tid, time_ns - self._origin_ns) for pid, tid, time_ns in points]
        self.file.arrow(number, moved)

    def _track(self, pid: int, name: str) -> None:
        self.file.thread(pid, self._next_tid, name)
        self._next_tid += 1

    def _slices(
        self,
        pid: int,
        tids: npt.NDArray[np.int64],
        begins_ns: Times,
        ends_ns: Times,
        order: npt.NDArray[np.intp],
        name: Text,
        arguments: Text,
    ) -> None:
        columns = (order, tids[order], begins_ns[order], ends_ns[order])
        origin_ns, write = self._origin_ns, self.file.slice
        for row, tid, begin_ns, end_ns in zip(*(c.tolist() for c in columns), strict=True):
            write(pid, tid, name(row), begin_ns - origin_ns, end_ns - origin_ns, arguments(row))


def _count(lanes: npt.NDArray[np.int64]) -> int:
    return int(lanes.max()) + 1 if len(lanes) else 0
