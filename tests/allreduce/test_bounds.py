"""Bounds against each other, the paper's figures, and what the model makes of orders."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from byteprophet.allreduce.bounds import (
    bound_ns,
    dear_ideal_ns,
    eq6_max_speedup,
    eq7_dear_ns,
    eq8_allreduce_ns,
)
from byteprophet.allreduce.groups import Groups, fixed_size
from byteprophet.allreduce.order import RUNTIMES, iteration_ns
from byteprophet.allreduce.timing import Link, Timing
from byteprophet.workload import load
from byteprophet.workload.bound import all_reduce_bound_ns

from .test_order import grouped
from .timings import MODELS, even, of_model


@settings(max_examples=300, deadline=None)
@given(grouped())
def test_no_runtime_is_faster_than_its_bounds(
    case: tuple[Timing, Groups],
) -> None:
    timing, groups = case
    for runtime in RUNTIMES:
        assert iteration_ns(runtime, timing, groups) >= bound_ns(timing)
    assert iteration_ns("dear", timing, groups) >= dear_ideal_ns(timing)
    assert iteration_ns("allreduce", timing, groups) >= timing.compute_ns


@pytest.mark.parametrize("name", [*MODELS, "random:3"])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_bound_is_that_of_workloads(name: str, ranks: int) -> None:
    workload = load(name)
    timing = Timing.of_workload(workload, Link(ranks, 10**9, 100_000))
    assert bound_ns(timing) == all_reduce_bound_ns(workload, bandwidth_bps=10**9, workers=ranks)


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
