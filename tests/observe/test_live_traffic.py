"""Sums of transfers, beside a count of every nanosecond."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from byteprophet.observe.live_traffic import Cover, Recent, Traffic, most_in_flight
from byteprophet.timeline.tables import TRANSFER

INTERVALS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 10)).map(lambda pair: (pair[0], sum(pair))),
    min_size=1,
    max_size=8,
)


@given(st.lists(INTERVALS, max_size=4))
def test_covered_time_is_that_of_the_union(batches: list[list[tuple[int, int]]]) -> None:
    cover, moments, covered_ns = Cover(), set[int](), 0
    for intervals in batches:
        begins, ends = (np.array(column, np.int64) for column in zip(*intervals, strict=True))
        covered_ns += cover.add(begins, ends)
        moments |= {at for begin, end in intervals for at in range(begin, end)}
        assert covered_ns == len(moments)


def test_what_is_forgotten_is_not_counted_twice() -> None:
    def array(*values: int) -> np.ndarray:  # type: ignore[type-arg]
        return np.array(values, np.int64)

    second = 1_000_000_000
    cover = Cover()
    assert cover.add(array(0, 2 * second), array(second, 3 * second)) == 2 * second
    assert cover.add(array(30 * second), array(31 * second)) == second
    # Of the first intervals nothing is known any more; 21 s is where memory begins.
    assert cover.add(array(0), array(22 * second)) == second
    assert cover.add(array(0), array(second)) == 0


@given(INTERVALS)
def test_most_in_flight_is_the_largest_sum_at_any_time(intervals: list[tuple[int, int]]) -> None:
    intervals = [(begin, end + 1) for begin, end in intervals]
    sizes = np.arange(1, len(intervals) + 1, dtype=np.int64) * 10
    most = max(
        sum(
            int(size)
            for size, (begin, end) in zip(sizes, intervals, strict=True)
            if begin <= at < end
        )
        for at in range(42)
    )
    begins, ends = (np.array(column, np.int64) for column in zip(*intervals, strict=True))
    assert most_in_flight(begins, ends, sizes) == most


def transfers(*rows: tuple[int, int, int, int, int, int, int]) -> np.ndarray:  # type: ignore[type-arg]
    """Tensor, size, ready, sent, acknowledged, pulled, server."""
    table = np.zeros(len(rows), TRANSFER)
    for place, (tensor, size, *times, server) in enumerate(rows):
        table[place] = (tensor << 16, size, *times, server, 1, -1, 1)
    return table


def test_sums_of_two_servers() -> None:
    traffic = Traffic({1: "first", 2: "second"})
    traffic.add(transfers((1, 100, 0, 10, 30, 50, 0), (2, 300, 0, 20, 40, 70, 1)), 0)
    traffic.add(transfers((1, 100, 60, 60, 90, 95, 0)), 1)
    assert traffic.links() == [
        {
            "server": 0, "push_bytes": 200, "pull_bytes": 200, "push_busy_ns": 20 + 30,
            "pull_busy_ns": 20 + 5, "in_flight_bytes": 100,
        },
        {
            "server": 1, "push_bytes": 300, "pull_bytes": 300, "push_busy_ns": 20,
            "pull_busy_ns": 30, "in_flight_bytes": 300,
        },
    ]  # fmt: skip
    assert traffic.sums() == {
        "transfers": 3,
        "held_ns": 10 + 20 + 0,
        "travel_ns": 40 + 50 + 35,
        "peers_ns": 20 + 30 + 5,
    }
    assert traffic.tensors() == [
        {"name": "second", "size_bytes": 300, "held_ns": 20, "travel_ns": 50},
        {"name": "first", "size_bytes": 100, "held_ns": 5, "travel_ns": 37},
    ]


def test_a_window_of_long_ago_is_forgotten() -> None:
    traffic = Traffic({})
    traffic.add(transfers((1, 100, 0, 10, 30, 50, 0)), 0)
    for _ in range(8):
        traffic.add(transfers(), 0)
    (link,) = traffic.links()
    assert link["in_flight_bytes"] == 0
    assert link["push_bytes"] == 100


def test_recent_sums_forget_after_two_generations() -> None:
    recent = Recent()
    recent.add("a", (1, 10))
    recent.age(0)
    recent.age(6_000_000_000)
    recent.add("a", (1, 5))
    recent.add("b", (1, 1))
    assert dict(recent.items()) == {"a": [2, 15], "b": [1, 1]}
    recent.age(12_000_000_000)
    assert dict(recent.items()) == {"a": [1, 5], "b": [1, 1]}
