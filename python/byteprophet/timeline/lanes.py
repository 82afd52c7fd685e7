"""Puts intervals on lanes, so that those on one lane are disjoint or nested.

Both functions are greedy and deterministic: an interval goes on the first lane that has room for it
when it begins. Intervals are [begin, end); empty ones need no room.
"""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]
Lanes = npt.NDArray[np.int64]

_ANY = 2**63
"""Stands for the end of the open interval on a lane that has none."""


def disjoint_lanes(begins: Times, ends: Times) -> Lanes:
    """Assigns a lane to each interval, such that intervals of one lane do not overlap.

    Uses as many lanes as intervals overlap at the busiest moment, which is the minimum.
    """
    lanes = np.zeros(len(begins), np.int64)
    free: list[int] = []
    busy: list[tuple[int, int]] = []  # end and lane, ordered by end
    order = np.lexsort((ends, begins))
    columns = (order, begins[order], ends[order])
    for index, begin, end in zip(*(column.tolist() for column in columns), strict=True):
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (end, lane))
        lanes[index] = lane
    return lanes


def nested_lanes(begins: Times, ends: Times) -> Lanes:
    """Assigns lanes such that any two intervals of one lane are disjoint or nested."""
    lanes = np.zeros(len(begins), np.int64)
    open_intervals = _OpenIntervals()
    order = outer_first(begins, ends)
    columns = (order, begins[order], ends[order])
    for index, begin, end in zip(*(column.tolist() for column in columns), strict=True):
        open_intervals.close_until(begin)
        lanes[index] = open_intervals.open(end)
    return lanes


class _OpenIntervals:
    """The ends of the open intervals on each lane, the innermost last.

    A tree of maxima finds the first lane with room in a logarithmic number of steps. If thousands
    of intervals overlap, looking at each lane would take hours.
    """

    def __init__(self) -> None:
        self._ends: list[list[int]] = [[]]
        self._by_end: list[tuple[int, int]] = []  # end and lane of all open intervals
        self._room = [_ANY, _ANY]  # node n has children 2n and 2n + 1; lanes come last

    def close_until(self, begin: int) -> None:
        """Closes the intervals that end at ``begin`` or earlier."""
        while self._by_end and self._by_end[0][0] <= begin:
            _, lane = heapq.heappop(self._by_end)
            self._ends[lane].pop()
            self._note(lane)

    def open(self, end: int) -> int:
        """Opens an interval on the first lane whose innermost interval contains it.

        Returns the lane.
        """
        if self._room[1] < end:
            self._add_lanes()
        node, lanes = 1, len(self._ends)
        while node < lanes:
            node *= 2
            if self._room[node] < end:
                node += 1
        lane = node - lanes
        self._ends[lane].append(end)
        heapq.heappush(self._by_end, (end, lane))
        self._note(lane)
        return lane

    def _note(self, lane: int) -> None:
        """Updates the tree after a change of ``lane``."""
        ends, room = self._ends[lane], self._room
        node = lane + len(self._ends)
        room[node] = ends[-1] if ends else _ANY
        while node > 1:
            node //= 2
            room[node] = max(room[2 * node], room[2 * node + 1])

    def _add_lanes(self) -> None:
        """Doubles the number of lanes."""
        lanes = len(self._ends)
        self._ends += [[] for _ in range(lanes)]
        self._room = [_ANY] * 2 * lanes + self._room[lanes:] + [_ANY] * lanes
        for node in range(2 * lanes - 1, 0, -1):
            self._room[node] = max(self._room[2 * node], self._room[2 * node + 1])


def outer_first(begins: Times, ends: Times) -> npt.NDArray[np.intp]:
    """Indices that sort intervals by start, and those with the same start longest first."""
    order: npt.NDArray[np.intp] = np.lexsort((-ends, begins))
    return order
