"""Predicted iterations against ticks of a clock, and against what can be said in closed form."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byteprophet.allreduce.groups import Groups, fixed_size
from byteprophet.allreduce.model import Order, predict
from byteprophet.allreduce.order import RUNTIMES, iteration_ns
from byteprophet.allreduce.timing import Link, Parameter, Timing
from byteprophet.job.owners import LEAST_CHUNK_BYTES

from .ticks import Ticks
from .timings import NS_PER_BYTE, even, partitions, timings


@st.composite
def anything(draw: st.DrawFn) -> tuple[Timing, Groups, Order]:
    timing = draw(timings())
    groups = draw(partitions(len(timing.parameters)))
    positions = draw(st.permutations(range(2 * len(groups))))
    after_step = draw(st.tuples(*(st.booleans() for _ in groups)))
    order = Order(tuple(positions[: len(groups)]), tuple(positions[len(groups) :]), after_step)
    return timing, groups, order


@settings(max_examples=100)
@given(anything())
def test_every_iteration_is_as_long_as_predicted(
    case: tuple[Timing, Groups, Order],
) -> None:
    timing, groups, order = case
    iterations = [b - a for a, b in pairwise(Ticks(timing, groups, order, 3).started)]
    assert iterations == [predict(timing, groups, order).iteration_ns] * 3


@settings(max_examples=100)
@given(anything())
def test_halves_follow_what_they_need_and_share_the_link(
    case: tuple[Timing, Groups, Order],
) -> None:
    timing, groups, order = case
    found = predict(timing, groups, order)
    halves = []
    for number, group in enumerate(groups):
        cost_ns = timing.link.reduce_ns(sum(timing.parameters[p].size_bytes for p in group))
        assert found.reduce_start_ns[number] >= max(timing.ready_ns[p] for p in group)
        assert found.gather_start_ns[number] >= found.reduce_end_ns[number]
        if order.after_step[number]:
            assert found.gather_start_ns[number] >= timing.step_ns
        halves.append((found.reduce_start_ns[number], found.reduce_end_ns[number], cost_ns))
        halves.append((found.gather_start_ns[number], found.gather_end_ns[number], cost_ns))
    assert all(end - start >= cost for start, end, cost in halves)
    # Whatever lies within a stretch of time has gone over the link in it.
    for start, _, _ in halves:
        for _, end, _ in halves:
            inside = sum(cost for first, last, cost in halves if start <= first and last <= end)
            assert inside <= max(0, end - start)


F = 12_000


@pytest.mark.parametrize(
    ("runtime", "in_units_of_f"), [("allreduce", 4.0), ("dear", 3.5), ("dear-planned", 3.0)]
)
def test_backward_twice_forward_and_all_reduce_three_times(
    runtime: str, in_units_of_f: float
) -> None:
    """The example that the runtimes were made for: what the fluid limit gives, within 1.5%."""
    timing = even(300, forward_ns=F, backward_ns=2 * F, all_reduce_ns=3 * F)
    groups = fixed_size(timing, 1)
    assert iteration_ns(runtime, timing, groups) == pytest.approx(in_units_of_f * F, rel=0.015)


@pytest.mark.parametrize("all_reduce", [1, 2, 3, 4, 5, 8])
def test_fine_groups_reach_equations_7_and_8(all_reduce: int) -> None:
    """max(ff, ag) + max(bp, rs), and ff + max(bp, ar), written out for bp = 2 ff."""
    timing = even(300, forward_ns=F, backward_ns=2 * F, all_reduce_ns=all_reduce * F)
    groups = fixed_size(timing, 1)
    half = all_reduce / 2
    assert iteration_ns("dear", timing, groups) == pytest.approx(
        (max(1, half) + max(2, half)) * F, rel=0.015
    )
    assert iteration_ns("allreduce", timing, groups) == pytest.approx(
        (1 + max(2, all_reduce)) * F, rel=0.015
    )


def one_by_one(sizes: list[int], ready: list[int], forward: list[int], backward: int) -> Timing:
    parameters = tuple(
        Parameter(f"p{place}", *each)
        for place, each in enumerate(zip(sizes, ready, forward, strict=True))
    )
    return Timing(parameters, backward, NS_PER_BYTE)


def test_an_urgent_gather_passes_a_reduction_in_progress() -> None:
    """By hand: 0 is reduced 5 to 8 and gathered 8 to 11 in the middle of 1's, 0 to 20."""
    timing = one_by_one([3, 20], [5, 0], [10, 10], 6)
    order = Order(reduce=(0, 2), gather=(1, 3), after_step=(False, False))
    found = predict(timing, ((0,), (1,)), order)
    assert found.reduce_start_ns == (5, 0)
    assert found.reduce_end_ns == (8, 26)
    assert found.gather_start_ns == (8, 26)
    assert found.gather_end_ns == (11, 46)
    assert found.iteration_ns == 46 + 10


def test_a_gather_of_parameters_waits_for_step_and_one_of_gradients_does_not() -> None:
    timing = one_by_one([4], [0], [2], 10)
    groups = ((0,),)
    waits = predict(timing, groups, Order((0,), (1,), (True,)))
    assert (waits.gather_start_ns, waits.gather_end_ns, waits.iteration_ns) == ((10,), (14,), 16)
    early = predict(timing, groups, Order((0,), (1,), (False,)))
    assert (early.gather_start_ns, early.gather_end_ns, early.iteration_ns) == (
        (4,),
        (8,),
        12,
    )


def test_one_rank_waits_for_nothing() -> None:
    parameters = (Parameter("a", 4, 3, 5), Parameter("b", 4, None, 6))
    timing = Timing(parameters, 7, Link(1, 1, 1000))
    for runtime in RUNTIMES:
        assert iteration_ns(runtime, timing, ((1,), (0,))) == 7 + 5 + 6


@settings(max_examples=100)
@given(st.data())
def test_an_all_reduce_in_chunks_is_one_of_each_chunk(data: st.DataObject) -> None:
    """Buckets of one large gradient take as long as buckets of its parts, one after the other."""
    sizes = data.draw(st.lists(st.integers(1, 4 * LEAST_CHUNK_BYTES), min_size=1, max_size=4))
    ready_ns = data.draw(st.lists(st.integers(0, 10**8), min_size=len(sizes), max_size=len(sizes)))
    link = Link.of_ranks([10**9, 10**9, 5 * 10**8], 1000, owners=(3, 2, 1))
    positions = data.draw(st.permutations(range(2 * len(sizes))))
    whole: list[Parameter] = []
    parts: list[Parameter] = []
    turns: list[tuple[int, int, int]] = []  # of each part: both positions, and its number
    for place, (size_bytes, ready) in enumerate(zip(sizes, ready_ns, strict=True)):
        whole.append(Parameter(f"{place}", size_bytes, ready, 10**7))
        chunks = link.chunk_bytes(size_bytes)
        assert sum(chunks) == size_bytes
        assert max(chunks) <= LEAST_CHUNK_BYTES
        for number, part_bytes in enumerate(chunks):
            forward_ns = 10**7 if number + 1 == len(chunks) else 0
            parts.append(Parameter(f"{place}.{number}", part_bytes, ready, forward_ns))
            turns.append((positions[place], positions[len(sizes) + place], number))
    half_at = sorted(
        [(reduce, number, part) for part, (reduce, _, number) in enumerate(turns)]
        + [(gather, number, len(parts) + part) for part, (_, gather, number) in enumerate(turns)]
    )
    at = [0] * len(half_at)
    for position, (_, _, half) in enumerate(half_at):
        at[half] = position
    one = Order(
        tuple(positions[: len(sizes)]), tuple(positions[len(sizes) :]), (False,) * len(sizes)
    )
    other = Order(tuple(at[: len(parts)]), tuple(at[len(parts) :]), (False,) * len(parts))
    times_ns = [
        predict(
            Timing(tuple(parameters), 10**8, link),
            tuple((place,) for place in range(len(parameters))),
            order,
        ).iteration_ns
        for parameters, order in ((whole, one), (parts, other))
    ]
    assert times_ns[0] == times_ns[1]
