"""Orders: permutations of positions, each runtime's rule, and that the planned one is the best."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byteprophet.allreduce.groups import Groups, fixed_size
from byteprophet.allreduce.levelled import levelled
from byteprophet.allreduce.model import Order, group_bytes, predict
from byteprophet.allreduce.order import (
    RUNTIMES,
    dear,
    earliest_deadline,
    iteration_ns,
    planned,
)
from byteprophet.allreduce.timing import Link, Timing
from byteprophet.job.owners import LEAST_CHUNK_BYTES

from .timings import MODELS, of_model, partitions, timings


@st.composite
def grouped(draw: st.DrawFn, most: int = 7) -> tuple[Timing, Groups]:
    timing = draw(timings(most))
    return timing, draw(partitions(len(timing.parameters)))


@given(grouped())
def test_positions_are_all_there_and_reductions_come_first(case: tuple[Timing, Groups]) -> None:
    timing, groups = case
    for rule in RUNTIMES.values():
        order = rule(timing, groups)
        assert sorted(order.reduce + order.gather) == list(range(2 * len(groups)))
        assert all(r < g for r, g in zip(order.reduce, order.gather, strict=True))


@given(timings())
def test_dear_reduces_everything_before_it_gathers_in_forward_order(timing: Timing) -> None:
    groups = fixed_size(timing, 8)
    found = predict(timing, groups, dear(timing, groups))
    assert list(found.reduce_end_ns) == sorted(found.reduce_end_ns)
    assert min(found.gather_start_ns) >= max(*found.reduce_end_ns, timing.step_ns)
    needed = sorted(range(len(groups)), key=lambda number: min(groups[number]))
    starts = [found.gather_start_ns[number] for number in needed]
    assert starts == sorted(starts)


@given(timings())
def test_all_reduces_go_one_after_another(timing: Timing) -> None:
    groups = fixed_size(timing, 8)
    found = predict(timing, groups, RUNTIMES["allreduce"](timing, groups))
    assert found.reduce_end_ns == found.gather_start_ns
    assert list(found.gather_end_ns) == sorted(found.gather_end_ns)


@settings(max_examples=40)
@given(grouped(most=3))
def test_no_order_of_the_same_groups_is_faster_than_the_planned_one(
    case: tuple[Timing, Groups],
) -> None:
    """All orders of all halves, no gather waiting for step()."""
    timing, groups = case
    count = len(groups)
    planned_ns = iteration_ns("dear-planned", timing, groups)
    for positions in permutations(range(2 * count)):
        order = Order(positions[:count], positions[count:], (False,) * count)
        assert planned_ns <= predict(timing, groups, order).iteration_ns


@given(grouped())
def test_sharing_out_the_state_costs_the_planned_order_nothing(case: tuple[Timing, Groups]) -> None:
    timing, groups = case
    order = planned(timing, groups)
    found = predict(timing, groups, order)
    early = predict(timing, groups, earliest_deadline(timing, groups))
    assert found == early
    for start_ns, after_step in zip(found.gather_start_ns, order.after_step, strict=True):
        assert after_step == (start_ns >= timing.step_ns)


@given(grouped())
def test_the_planned_order_is_never_behind_the_others(case: tuple[Timing, Groups]) -> None:
    timing, groups = case
    planned_ns = iteration_ns("dear-planned", timing, groups)
    assert planned_ns <= iteration_ns("dear", timing, groups)
    assert planned_ns <= iteration_ns("allreduce", timing, groups)


def test_real_networks_gather_both_gradients_and_parameters() -> None:
    """At an all-reduce as long as the compute: some of each, before step() what was ready first."""
    for model in MODELS:
        timing = of_model(model, 1.0, message_cost_ns=100_000)
        groups = fixed_size(timing, 2 << 20)
        assert set(planned(timing, groups).after_step) == {False, True}


@pytest.mark.parametrize("slow", [1, 2])
def test_large_buckets_go_in_chunks_rather_than_sharded(slow: int) -> None:
    """Without them, a slow link waits for whole gradients, and a sharded bucket has none."""
    rates_bps = [2 * 10**9] * (4 - slow) + [10**9] * slow
    link = Link.of_ranks(rates_bps, owners=levelled(rates_bps).weights)
    timing = replace(of_model("resnet50", 1.0), link=link)
    groups = fixed_size(timing, 4 * LEAST_CHUNK_BYTES)
    order = planned(timing, groups)
    large = [group_bytes(timing, group) > LEAST_CHUNK_BYTES for group in groups]
    assert any(large)
    assert not any(
        whole and sharded for whole, sharded in zip(large, order.after_step, strict=True)
    )
    sharded = replace(order, after_step=(True,) * len(groups))
    ours, theirs = (predict(timing, groups, each).iteration_ns for each in (order, sharded))
    assert ours < theirs
