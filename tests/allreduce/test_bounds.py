"""Bounds against each other, the paper's figures, and what the model makes of orders."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byteprophet import bound
from byteprophet.allreduce.bounds import (
    bound_ns,
    dear_ideal_ns,
    eq6_max_speedup,
    eq7_dear_ns,
    eq8_allreduce_ns,
)
from byteprophet.allreduce.groups import Groups, fixed_size
from byteprophet.allreduce.levelled import levelled
from byteprophet.allreduce.model import group_bytes, predict
from byteprophet.allreduce.order import RUNTIMES, iteration_ns
from byteprophet.allreduce.timing import Link, Timing
from byteprophet.job import Cluster, Host, Job, Strategy
from byteprophet.job.strategy import ALL_REDUCE
from byteprophet.workload import load
from byteprophet.workload.as_job import model_of, times_of

from .test_order import grouped
from .timings import MODELS, even, of_model


@settings(max_examples=150)
@given(grouped())
def test_no_runtime_is_faster_than_its_bounds(
    case: tuple[Timing, Groups],
) -> None:
    timing, groups = case
    for runtime in RUNTIMES:
        assert iteration_ns(runtime, timing, groups) >= bound_ns(timing)
    assert iteration_ns("dear", timing, groups) >= dear_ideal_ns(timing)
    assert iteration_ns("allreduce", timing, groups) >= timing.compute_ns


rates = st.sampled_from([2, 4, 8, 16])


@settings(max_examples=150)
@given(grouped(), st.lists(st.tuples(rates, st.integers(0, 3)), min_size=2, max_size=5))
def test_no_owners_are_faster_than_the_bound(
    case: tuple[Timing, Groups], ranks: list[tuple[int, int]]
) -> None:
    """On any links, under any runtime. Each half follows what it needs."""
    timing, groups = case
    owners = tuple(weight for _, weight in ranks)
    rates_bps = [rate * 10**9 for rate, _ in ranks]
    link = Link.of_ranks(rates_bps, timing.link.message_cost_ns, owners if any(owners) else ())
    timing = replace(timing, link=link)
    for rule in RUNTIMES.values():
        order = rule(timing, groups)
        found = predict(timing, groups, order)
        assert found.iteration_ns >= bound_ns(timing)
        for number, group in enumerate(groups):
            size_bytes = group_bytes(timing, group)
            ready_ns = max(timing.ready_ns[place] for place in group)
            assert found.reduce_end_ns[number] - ready_ns >= link.reduce_ns(size_bytes)
            assert found.gather_start_ns[number] >= found.reduce_end_ns[number]
            if order.after_step[number]:
                assert found.gather_start_ns[number] >= timing.step_ns
            alone_ns = link.gather_ns(size_bytes)
            assert found.gather_end_ns[number] - found.gather_start_ns[number] >= alone_ns
    rounding_ns = 1
    assert iteration_ns("dear", timing, groups) >= eq7_dear_ns(timing) - rounding_ns
    assert iteration_ns("allreduce", timing, groups) >= timing.compute_ns


@settings(max_examples=100)
@given(grouped(), st.integers(2, 5), st.integers(1, 3))
def test_equal_weights_and_rates_are_one_link(
    case: tuple[Timing, Groups], ranks: int, weight: int
) -> None:
    timing, groups = case
    bandwidth_bps, cost_ns = timing.link.bandwidth_bps, timing.link.message_cost_ns
    timing = replace(timing, link=Link(ranks, bandwidth_bps, cost_ns))
    rated = Link.of_ranks([bandwidth_bps] * ranks, cost_ns, (weight,) * ranks)
    for runtime in RUNTIMES:
        expected = iteration_ns(runtime, timing, groups)
        assert iteration_ns(runtime, replace(timing, link=rated), groups) == expected


def test_levelled_owners_reach_the_bound_of_links_alone() -> None:
    """If nothing is computed and messages are free, but for the first and the last bucket."""
    timing = even(400, forward_ns=0, backward_ns=0, all_reduce_ns=12_000_000)
    fast_bps = timing.link.bandwidth_bps
    groups = fixed_size(timing, 0)
    for rates_bps in ([fast_bps] * 3 + [fast_bps // 2], [fast_bps] * 2 + [fast_bps // 2] * 2):
        times_ns = {}
        for owners in ((), levelled(rates_bps).weights):
            unequal = replace(timing, link=Link.of_ranks(rates_bps, owners=owners))
            times_ns[owners] = iteration_ns("allreduce", unequal, groups)
        equal_ns, levelled_ns = times_ns.values()
        assert bound_ns(unequal) <= levelled_ns <= 1.01 * bound_ns(unequal)
        assert equal_ns == pytest.approx(1.5 * bound_ns(unequal), rel=0.01)


@pytest.mark.parametrize("name", [*MODELS, "random:3"])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_bound_is_that_of_workloads(name: str, ranks: int) -> None:
    workload = load(name)
    timing = Timing.of_workload(workload, Link(ranks, 10**9, 100_000))
    job = Job(
        model_of(workload),
        times_of(workload, ranks),
        Cluster((Host(10**9, 10**9),) * ranks),
        Strategy(ALL_REDUCE),
    )
    assert bound_ns(timing) == bound.bound_ns(job)


@pytest.mark.parametrize("all_reduce", [1, 2, 3, 5])
def test_equations_with_backward_twice_forward(all_reduce: int) -> None:
    """In units of forward; Eq. 9's three cases are among them."""
    timing = even(300, forward_ns=12_000, backward_ns=24_000, all_reduce_ns=all_reduce * 12_000)
    half = all_reduce / 2
    eq7, eq8 = max(1, half) + max(2, half), 1 + max(2, all_reduce)
    assert eq7_dear_ns(timing) == 12_000 * eq7
    assert eq8_allreduce_ns(timing) == 12_000 * eq8
    assert eq6_max_speedup(timing) == pytest.approx(2 * 3 / eq7)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("share", [0.7, 1.0, 1.4])
def test_fine_groups_bring_the_planned_order_to_the_bound(model: str, share: float) -> None:
    """Messages free, a group per parameter: nothing but the sizes of single tensors is left."""
    timing = of_model(model, share)
    assert iteration_ns("dear-planned", timing, fixed_size(timing, 0)) <= 1.03 * bound_ns(timing)


def test_equation_6_lies_below_the_bound_where_the_last_gradient_is_large() -> None:
    """BERT's embedding, a fifth of its bytes, is ready last and needed first."""
    for share in (0.7, 1.0):
        bert, resnet = of_model("bert-base", share), of_model("resnet50", share)
        assert eq7_dear_ns(bert) < bound_ns(bert) == dear_ideal_ns(bert)
        assert bound_ns(resnet) < eq7_dear_ns(resnet) == dear_ideal_ns(resnet)
