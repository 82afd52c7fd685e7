"""Strict priority in the fluid limit, against its definition and against the bound."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from byteprophet import _core
from byteprophet.strict_priority import strict_priority, strict_priority_together

times = st.integers(0, 1000)
tensors = st.lists(st.tuples(times, st.integers(1, 300), times), min_size=1, max_size=12)


class Segment(NamedTuple):
    """What ``strict_priority`` yields."""

    starts_ns: int
    ends_ns: int
    item: int
    done: bool


def segments_of(ready_ns: Sequence[int], needs_ns: Sequence[int]) -> list[Segment]:
    to_come = [(ready, item) for item, ready in enumerate(ready_ns)]
    return [Segment(*segment) for segment in strict_priority(to_come, needs_ns)]


def done_ns(segments: list[Segment], tensors: int) -> list[float]:
    """When each tensor has left the link."""
    done = [0.0] * tensors
    for segment in segments:
        assert done[segment.item] == 0
        if segment.done:
            done[segment.item] = segment.ends_ns
    return done


def test_a_case_by_hand() -> None:
    # 1 begins, 0 takes the link from it at 10, then 1 goes on; 2 is last though ready at 5.
    segments = segments_of([10, 0, 5], [20, 30, 5])
    assert [(s.starts_ns, s.ends_ns, s.item) for s in segments] == [
        (0, 10, 1),
        (10, 30, 0),
        (30, 50, 1),
        (50, 55, 2),
    ]
    assert done_ns(segments, 3) == [30, 50, 55]


@given(tensors)
def test_the_most_urgent_ready_tensor_has_the_link(drawn: list[tuple[int, int, int]]) -> None:
    ready, needs, _ = (list(column) for column in zip(*drawn, strict=True))
    segments = segments_of(ready, needs)
    done = done_ns(segments, len(ready))
    for before, after in pairwise(segments):
        assert before.ends_ns <= after.starts_ns
    for tensor, need in enumerate(needs):
        mine = [s for s in segments if s.item == tensor]
        assert sum(s.ends_ns - s.starts_ns for s in mine) == need
        assert mine[0].starts_ns >= ready[tensor]
    for segment in segments:
        for other in range(segment.item):
            # More urgent: it was not there yet, or had left.
            assert ready[other] >= segment.ends_ns or done[other] <= segment.starts_ns
    busy = sum(segment.ends_ns - segment.starts_ns for segment in segments)
    idle = [(a.ends_ns, b.starts_ns) for a, b in pairwise(segments) if a.ends_ns < b.starts_ns]
    assert busy == sum(needs)
    for starts, ends in idle:
        assert all(ready[i] >= ends or done[i] <= starts for i in range(len(ready)))


@given(tensors, st.integers(0, 500))
def test_it_is_optimal(drawn: list[tuple[int, int, int]], before_ns: int) -> None:
    """Its iteration is the lower bound: computed there as a maximum, here by simulation."""
    ready, needs, forward = (list(column) for column in zip(*drawn, strict=True))
    backward_ns = max(ready) + before_ns
    back = done_ns(segments_of(ready, needs), len(ready))
    iteration_ns = float(backward_ns)
    for back_ns, takes_ns in zip(back, forward, strict=True):
        iteration_ns = max(iteration_ns, back_ns) + takes_ns
    # One byte takes one nanosecond. The bound's other terms, which one link cannot beat either:
    bound_ns = _core.iteration_bound_ns(
        needs,
        ready,
        forward,
        backward_ns=backward_ns,
        bandwidth_bps=8 * 10**9,
        workers=1,
        servers=1,
    )
    assert max(iteration_ns, sum(needs)) == bound_ns


@given(tensors)
def test_what_is_released_meanwhile_counts_from_then(drawn: list[tuple[int, int, int]]) -> None:
    """As if it had been known from the start when it would be ready."""
    count = len(drawn)
    needs = [need for _, need, _ in drawn] * 2
    to_come = [(ready, count + item) for item, (ready, _, _) in enumerate(drawn)]
    known, found = list(to_come), []
    for segment in strict_priority(to_come, needs):
        found.append(segment)
        _, ends_ns, item, done = segment
        if done and item >= count:
            release = ends_ns + drawn[item - count][2], item - count
            to_come.append(release)
            to_come.sort(reverse=True)
            known.append(release)
    assert {item for _, _, item, done in found if done} == set(range(2 * count))
    assert list(strict_priority(known, needs)) == found


needs_on_links = st.integers(1, 4).flatmap(
    lambda links: st.lists(
        st.tuples(
            st.integers(0, 20),
            st.lists(st.integers(0, 9), min_size=links, max_size=links),
            st.none() | st.integers(0, 5),  # if any, an item that is ready so long after this one
        ),
        min_size=1,
        max_size=8,
    )
)


@given(needs_on_links)
def test_on_several_links_tick_by_tick(
    items: list[tuple[int, list[int], int | None]],
) -> None:
    """Every second item comes when the one before it is done, if that says so."""
    count = len(items)
    ready: dict[int, int] = {}  # by item
    follows = {n + 1: n for n, item in enumerate(items[:-1]) if n % 2 == 0 and item[2] is not None}
    for number, (ready_ns, _, _) in enumerate(items):
        if number not in follows:
            ready[number] = ready_ns
    to_come = [(time, item) for item, time in ready.items()]
    found = {}
    for starts_ns, ends_ns, item, done in strict_priority_together(
        to_come, [needs for _, needs, _ in items]
    ):
        assert done
        found[item] = starts_ns, ends_ns
        if item + 1 in follows and item % 2 == 0:
            to_come.append((ends_ns + (items[item][2] or 0), item + 1))
            to_come.sort(reverse=True)
    left = [list(needs) for _, needs, _ in items]
    started: dict[int, int] = {}
    ended: dict[int, int] = {}
    now = 0
    while len(ended) < count:
        for _ in range(count):  # as one that needs nothing may let another begin
            for number in range(count):
                arrived = number in ready and ready[number] <= now
                if arrived and number not in ended and not any(left[number]):
                    ended[number] = now
                    started.setdefault(number, now)
                    if number + 1 in follows and number % 2 == 0:
                        ready[number + 1] = now + (items[number][2] or 0)
        for link in range(len(left[0])):
            for item in range(count):
                if item in ready and ready[item] <= now and left[item][link]:
                    left[item][link] -= 1
                    started.setdefault(item, now)
                    break
        now += 1
    assert found == {item: (started[item], ended[item]) for item in range(count)}


@given(tensors)
def test_several_links_with_the_same_needs_are_as_one(
    tensors: list[tuple[int, int, int]],
) -> None:
    ready_ns = [ready for ready, _, _ in tensors]
    needs_ns = [need for _, need, _ in tensors]
    ended = {s.item: s.ends_ns for s in segments_of(ready_ns, needs_ns) if s.done}
    to_come = [(ready, item) for item, ready in enumerate(ready_ns)]
    found = strict_priority_together(to_come, [[need] * 3 for need in needs_ns])
    assert {item: ends for _, ends, item, _ in found} == ended
