"""Intervals put on as few lanes as needed, so that a lane never shows two things in one place.

Both functions are greedy and deterministic: an interval goes on the lane with the lowest number
that has room for it when it begins. Intervals are [begin, end); empty ones need no room.
"""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]
Lanes = npt.NDArray[np.int64]


def disjoint_lanes(begins: Times, ends: Times) -> Lanes:
    """A lane per interval, such that those of one lane do not overlap.

    As many lanes as there are intervals at the busiest moment; greedy is optimal for intervals.
    """
    lanes = np.zeros(len(begins), np.int64)
    free: list[int] = []
    busy: list[tuple[int, int]] = []  # by end
    for index in np.lexsort((ends, begins)).tolist():
        begin, end = int(begins[index]), int(ends[index])
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (end, lane))
        lanes[index] = lane
    return lanes


def nested_lanes(begins: Times, ends: Times) -> Lanes:
    """A lane per interval, such that any two of one lane are disjoint or one contains the other."""
    lanes = np.zeros(len(begins), np.int64)
    open_ends: list[list[int]] = []  # per lane, of what is open, the innermost last
    for index in outer_first(begins, ends).tolist():
        begin, end = int(begins[index]), int(ends[index])
        for lane, ends_of_lane in enumerate(open_ends):  # noqa: B007 (used below)
            while ends_of_lane and ends_of_lane[-1] <= begin:
                ends_of_lane.pop()
            if not ends_of_lane or end <= ends_of_lane[-1]:
                break
        else:
            lane = len(open_ends)
            open_ends.append([])
        open_ends[lane].append(end)
        lanes[index] = lane
    return lanes


def outer_first(begins: Times, ends: Times) -> npt.NDArray[np.intp]:
    """The order by begin, and of those that begin together the longest first."""
    order: npt.NDArray[np.intp] = np.lexsort((-ends, begins))
    return order
