from __future__ import annotations

from dataclasses import replace

import pytest

from byteprophet.bench import Case, Plan
from byteprophet.errors import UserError

CASE = Case(workload="resnet50", scheduler="prophet", bandwidth_bps=10**9)


@pytest.mark.parametrize(
    ("iterations", "rounds", "per_job"), [(12, 2, 6), (7, 2, 4), (1, 1, 1), (9, 4, 3)]
)
def test_no_fewer_iterations_than_asked_for(iterations: int, rounds: int, per_job: int) -> None:
    plan = Plan((CASE,), iterations, rounds, warmup_iterations=3)
    assert plan.iterations_per_job == per_job
    assert plan.iterations_per_job * rounds >= iterations
    assert plan.updates == 3 + per_job


@pytest.mark.parametrize(("cases", "iterations", "rounds"), [((), 5, 1), ((CASE,), 0, 1)])
def test_nothing_to_measure_is_refused(
    cases: tuple[Case, ...], iterations: int, rounds: int
) -> None:
    with pytest.raises(UserError):
        Plan(cases, iterations, rounds)


def test_the_slowest_link_decides() -> None:
    assert CASE.slowest_bps == 10**9
    assert replace(CASE, worker_bandwidth_bps={1: 10**8}).slowest_bps == 10**8
    assert replace(CASE, worker_bandwidth_bps={1: 10**10}).slowest_bps == 10**9
    assert replace(CASE, worker_bandwidth_bps={0: 10**10, 1: 10**11}).slowest_bps == 10**10
    unlimited = replace(CASE, bandwidth_bps=None)
    assert unlimited.slowest_bps is None
    assert replace(unlimited, worker_bandwidth_bps={1: 10**8}).slowest_bps == 10**8


def test_more_rounds_than_iterations_are_refused() -> None:
    with pytest.raises(UserError, match="--rounds 4"):
        Plan((CASE,), 3, 4)
