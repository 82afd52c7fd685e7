"""Strict priority in the fluid limit, against its definition and against the bound."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from byteprophet import _core
from byteprophet.control.fluid import Segment, strict_priority

times = st.integers(0, 1000)
tensors = st.lists(st.tuples(times, st.integers(1, 300), times), min_size=1, max_size=12)


def done_ns(segments: list[Segment], tensors: int) -> list[float]:
    """When each tensor has left the link."""
    done = [0.0] * tensors
    for segment in segments:
        done[segment.tensor] = segment.ends_ns
    return done


def test_a_case_by_hand() -> None:
    # 1 begins, 0 takes the link from it at 10, then 1 goes on; 2 is last though ready at 5.
    segments = strict_priority([10, 0, 5], [20, 30, 5])
    assert [(s.starts_ns, s.ends_ns, s.tensor) for s in segments] == [
        (0, 10, 1),
        (10, 30, 0),
        (30, 50, 1),
        (50, 55, 2),
    ]
    assert done_ns(segments, 3) == [30, 50, 55]


@given(tensors)
def test_the_most_urgent_ready_tensor_has_the_link(drawn: list[tuple[int, int, int]]) -> None:
    ready, needs, _ = (list(column) for column in zip(*drawn, strict=True))
    segments = strict_priority(ready, needs)
    done = done_ns(segments, len(ready))
    for before, after in pairwise(segments):
        assert before.ends_ns <= after.starts_ns
    for tensor, need in enumerate(needs):
        mine = [s for s in segments if s.tensor == tensor]
        assert sum(s.ends_ns - s.starts_ns for s in mine) == need
        assert mine[0].starts_ns >= ready[tensor]
    for segment in segments:
        for other in range(segment.tensor):
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
    back = done_ns(strict_priority(ready, needs), len(ready))
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
