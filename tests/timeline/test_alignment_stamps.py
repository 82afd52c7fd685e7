"""Evidence is sorted by what answers it, and brought near one clock, in whole nanoseconds."""

from __future__ import annotations

import numpy as np
import pytest

from byteprophet.errors import UserError
from byteprophet.timeline.alignment_evidence import Evidence
from byteprophet.timeline.alignment_rough import frame
from byteprophet.timeline.alignment_stamps import Pair, Stamps, answers


def stamps(pair: Pair, *sizes: int) -> Stamps:
    times = np.arange(len(sizes), dtype=np.int64)
    return Stamps(pair, times, times + 10, np.array(sizes, np.int64), 0)


def summary(alike: list[Stamps]) -> list[tuple[Pair, list[int]]]:
    return [(each.pair, each.sizes.tolist()) for each in alike]


def test_equal_sizes_are_compared_both_ways() -> None:
    found = answers(2, [stamps((0, 1), 8, 9, 8, 5), stamps((1, 0), 8, 5), stamps((1, 0), 8, 7)])
    assert [summary(alike) for alike in found.alike] == [
        [((0, 1), [8, 8]), ((1, 0), [8]), ((1, 0), [8])],
        [((0, 1), [5]), ((1, 0), [5]), ((1, 0), [])],
    ]
    assert (found.circles, found.unanswered) == ([], [])


def test_all_is_compared_if_no_size_is_equal() -> None:
    found = answers(2, [stamps((0, 1), 8, 9), stamps((1, 0), 7)])
    assert [summary(alike) for alike in found.alike] == [[((0, 1), [8, 9]), ((1, 0), [7])]]


def test_the_sixteen_most_frequent_sizes_are_enough() -> None:
    sizes = [size for size in range(5000, 5020) for _ in range(size - 4990)]
    found = answers(2, [stamps((0, 1), *sizes), stamps((1, 0), *sizes)])
    assert [alike[0].sizes[0] for alike in found.alike] == list(range(5019, 5003, -1))


def test_circles_and_what_is_unanswered() -> None:
    # 0 -> 1 -> 2 -> 0 is a circle, 3 <-> 4 answer each other, 2 -> 3 has no answer, 4 is alone with
    # itself, too.
    pairs = [(0, 1), (1, 2), (2, 0), (3, 4), (4, 3), (2, 3), (4, 4)]
    found = answers(5, [stamps(pair, 1) for pair in pairs])
    assert [[each.pair for each in alike] for alike in found.alike] == [[(3, 4), (4, 3)]]
    assert [[each.pair for each in circle] for circle in found.circles] == [
        [(0, 1), (1, 2), (2, 0)]
    ]
    assert [each.pair for each in found.unanswered] == [(2, 3)]


def test_rough_offsets_leave_no_more_than_a_delay() -> None:
    # 1's clock is 10^18 ahead of 0's, 2's is 5 * 10^17 behind 1's; each delay is 10 or 30.
    first, second = 10**18, -5 * 10**17
    ask = Evidence("0", "1", "ask", np.array([0, 100]), np.array([30, 110]) + first)
    answer = Evidence(
        "2", "1", "answer", np.array([50]) + first + second, np.array([80], np.int64) + first
    )
    seen = frame(["0", "1", "2"], 0, [((0, 1), ask), ((2, 1), answer)])
    # From 0 to 1 by the smaller delay, on to 2 against the direction of the other.
    assert seen.rough_ns == (0, first + 10, first + 10 + second - 30)
    assert seen.local_ns(0)[1] == seen.middle_ns
    there = seen.stamps((0, 1), ask)
    assert there.delays_ns.tolist() == [20, 0]
    assert there.times_ns.tolist() == [-seen.middle_ns, 100 - seen.middle_ns]
    assert seen.stamps((2, 1), answer).delays_ns.tolist() == [0]
    # All stamps are between begin and end.
    ends = [time - seen.local_ns(1)[1] for time in (ask.effect_ns, answer.effect_ns)]
    assert max(np.abs(end).max() for end in ends) <= seen.half_ns


def test_unconnected_machines_are_named() -> None:
    ask = Evidence("b", "c", "ask", np.array([0]), np.array([30]))
    with pytest.raises(UserError, match="no events connect a with b, directly or through"):
        frame(["a", "b", "c"], 1, [((1, 2), ask)])
