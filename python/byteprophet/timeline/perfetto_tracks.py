"""The tracks of a timeline's processes: which slices stand on which."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from byteprophet.timeline.lanes import disjoint_lanes, nested_lanes, outer_first
from byteprophet.timeline.trace_file import TraceFile

Times = npt.NDArray[np.int64]

Text = Callable[[int], str]
"""By row: JSON."""


@dataclass(frozen=True)
class Place:
    """Where the slices of a table's rows are: per row the thread (0: nowhere), begin and end."""

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
        """As ``begin``, the last moment: the slice's end is no longer part of it."""
        if self.tids[row] == 0 or self.begins_ns[row] >= self.ends_ns[row]:
            return None
        return self.pid, int(self.tids[row]), int(self.ends_ns[row]) - 1


class Tracks:
    """Makes the threads of a file, from number ``next_tid`` on; times are on one clock."""

    def __init__(self, file: TraceFile, origin_ns: int, next_tid: int) -> None:
        self.file = file
        self._origin_ns = origin_ns
        self._next_tid = next_tid

    def overlapping(
        self, pid: int, label: str, begins_ns: Times, ends_ns: Times, name: Text, arguments: Text
    ) -> Place:
        """Slices of all rows whose times are known, on as few tracks as keep them disjoint."""
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
        """Slices of one lane on one track; on more, should they not keep what lanes promise."""
        lanes = nested_lanes(begins_ns, ends_ns)
        outer = outer_first(begins_ns, ends_ns)
        order = outer[np.argsort(lanes[outer], kind="stable")]
        tids = self._next_tid + lanes
        for lane in range(_count(lanes)):
            self._track(pid, f"{label} ({lane + 1})" if lane else label)
        self._slices(pid, tids, begins_ns, ends_ns, order, name, arguments)

    def counter(self, pid: int, name: str, unit: str, times_ns: Times, changes: Times) -> None:
        """The sum of ``changes`` over time, of the process; one value where several are at once."""
        order = np.argsort(times_ns, kind="stable")
        times_ns, totals = times_ns[order], np.cumsum(changes[order])
        last = np.append(np.diff(times_ns) != 0, True)[: len(times_ns)]
        for time_ns, value in zip(times_ns[last].tolist(), totals[last].tolist(), strict=True):
            self.file.counter(pid, name, time_ns - self._origin_ns, unit, value)

    def arrow(self, number: int, points: list[tuple[int, int, int]]) -> None:
        """An arrow through slices, given as ``Place`` says them."""
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
