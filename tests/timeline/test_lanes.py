"""Lanes: no two intervals of one overlap, or are nested; and no lane too many."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from byteprophet.timeline.lanes import disjoint_lanes, nested_lanes, outer_first

Intervals = list[tuple[int, int]]

intervals = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 10)).map(lambda pair: (pair[0], sum(pair))),
    max_size=25,
)


def columns(given_: Intervals) -> tuple[np.ndarray, np.ndarray]:
    made = np.array(given_, np.int64).reshape(-1, 2)
    return made[:, 0], made[:, 1]


@given(intervals)
def test_as_many_lanes_as_overlap_at_one_time(given_: Intervals) -> None:
    lanes = disjoint_lanes(*columns(given_))
    for (a, lane_a), (b, lane_b) in combinations(zip(given_, lanes, strict=True), 2):
        if lane_a == lane_b:
            assert a[1] <= b[0] or b[1] <= a[0]
    # Two empty ones at one time, or an empty one where another begins or ends, need no room.
    busiest = max((sum(b <= t < e for b, e in given_) for t in range(41)), default=0)
    inside = [sum(b < t < e for b, e in given_) + 1 for t, end in given_ if t == end]
    assert len(set(lanes.tolist())) <= max([busiest, *inside, 1 if given_ else 0])
    assert set(lanes.tolist()) == set(range(len(set(lanes.tolist()))))


@given(intervals)
def test_nested_or_disjoint(given_: Intervals) -> None:
    lanes = nested_lanes(*columns(given_))
    for (a, lane_a), (b, lane_b) in combinations(zip(given_, lanes, strict=True), 2):
        if lane_a == lane_b:
            disjoint = a[1] <= b[0] or b[1] <= a[0]
            assert disjoint or a[0] <= b[0] <= b[1] <= a[1] or b[0] <= a[0] <= a[1] <= b[1]
    assert set(lanes.tolist()) == set(range(len(set(lanes.tolist()))))


def test_thousands_that_overlap_take_as_many_lanes_and_no_hours() -> None:
    """A look at each lane for each interval would be 800 million."""
    count = 40_000
    begins = np.arange(count)
    assert nested_lanes(begins, begins + count).tolist() == list(range(count))
    assert nested_lanes(begins, begins[::-1] + count).tolist() == [0] * count


def test_a_stack_of_calls_is_one_lane() -> None:
    calls = [(0, 100), (0, 40), (10, 20), (20, 40), (40, 100), (99, 100), (100, 130)]
    assert nested_lanes(*columns(calls)).tolist() == [0] * 7
    assert disjoint_lanes(*columns(calls)).tolist() == [1, 0, 2, 2, 0, 2, 0]
    assert outer_first(*columns(calls[::-1])).tolist() == [6, 5, 4, 3, 2, 1, 0]
