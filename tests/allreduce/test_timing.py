"""Timings from workloads and profiles, the cost of a half, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteprophet.allreduce.order import iteration_ns
from byteprophet.allreduce.timing import Link, Parameter, Timing
from byteprophet.bound import all_reduced_bytes
from byteprophet.workload import load

LINK = Link(4, 10**9, 250)


@given(st.integers(2, 64), st.integers(1, 10**12), st.integers(0, 10**6), st.integers(1, 10**10))
def test_a_half_costs_alpha_and_its_bytes(
    ranks: int, bandwidth_bps: int, cost_ns: int, size_bytes: int
) -> None:
    exact = Fraction(8 * size_bytes * 10**9 * (ranks - 1), ranks * bandwidth_bps)
    assert Link(ranks, bandwidth_bps, cost_ns).halves_ns(size_bytes) == (
        (cost_ns + math.ceil(exact),) * 2,
    )


def test_both_halves_move_what_an_all_reduce_moves() -> None:
    size_bytes = 10**9
    link = Link(4, 8 * 10**9)  # a byte per nanosecond
    assert link.reduce_ns(size_bytes) + link.gather_ns(size_bytes) == all_reduced_bytes(
        size_bytes, 4
    )


@pytest.mark.parametrize("name", ["resnet50", "bert-base", "random:7"])
def test_of_a_workload(name: str) -> None:
    workload = load(name)
    timing = Timing.of_workload(workload, LINK)
    assert timing.size_bytes == workload.size_bytes
    assert timing.forward_ns == workload.forward_ns
    assert timing.step_ns == timing.backward_ns == workload.backward_ns
    assert timing.ready_ns == workload.ready_ns()
    assert [each.name for each in timing.parameters] == [each.name for each in workload.tensors]
    tail_ns = 0
    for tensor, found in zip(reversed(workload.tensors), reversed(timing.tails_ns), strict=True):
        tail_ns += tensor.forward_ns
        assert found == tail_ns


def test_forward_computes_as_long_with_parts_in_place_of_parameters() -> None:
    """A first part that is needed late is waited for from then on, and not from step() on."""
    link = Link(2, 8 * 10**9)  # a byte per nanosecond and rank, of which half is sent each way
    whole = Timing(tuple(Parameter(name, 40, 0, 100) for name in "abcd"), 30, link)
    parts = [
        [],
        [Parameter("b.0", 20, 20, 0), Parameter("b.1", 20, 20, 0)],
        [],
        [whole.parameters[3]],
    ]
    found = whole.replaced(parts)
    assert (found.lead_ns, found.forward_ns, found.compute_ns) == (100, 400, 430)
    assert [each.name for each in found.parameters] == ["b.0", "b.1", "d"]
    assert [each.forward_ns for each in found.parameters] == [0, 200, 100]
    assert found.replaced([[], [], [whole.parameters[3]]]).lead_ns == 300
    assert iteration_ns("allreduce", found, ((0, 1), (2,))) == found.compute_ns
    late = replace(found, parameters=(Parameter("b.0", 400, 20, 200), found.parameters[2]))
    assert iteration_ns("allreduce", late, ((0,), (1,))) == 20 + 400 + 300


def test_readiness_ties_go_backwards_and_the_unused_comes_last() -> None:
    ready = [9, 5, 5, None, 0, 9]
    parameters = tuple(Parameter(f"p{place}", 4, each, 1) for place, each in enumerate(ready))
    timing = Timing(parameters, 9, LINK)
    assert timing.by_readiness == (4, 2, 1, 5, 0, 3)
    assert timing.ready_ns == (9, 5, 5, 9, 0, 9)


@pytest.mark.parametrize(
    "wrong",
    [
        Parameter("p", 0, 1, 1),
        Parameter("p", 4, 11, 1),
        Parameter("p", 4, -1, 1),
        Parameter("p", 4, 1, -1),
    ],
)
def test_what_cannot_be_is_refused(wrong: Parameter) -> None:
    with pytest.raises(ValueError, match="Parameter"):
        Timing((wrong,), 10, LINK)


def test_nothing_and_no_link_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Timing((), 10, LINK)
    for ranks, bandwidth_bps, cost_ns in ((0, 1, 0), (1, 0, 0), (1, 1, -1)):
        with pytest.raises(ValueError, match="must be positive"):
            Link(ranks, bandwidth_bps, cost_ns)
