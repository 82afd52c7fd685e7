"""Groups found by search against all partitions of small cases, and against rules on networks."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from itertools import chain, combinations, pairwise
from random import Random

import pytest

from byteprophet.allreduce import grouping
from byteprophet.allreduce.grouping import best_plan
from byteprophet.allreduce.groups import fixed_size, merged_gradient
from byteprophet.allreduce.model import predict
from byteprophet.allreduce.order import RUNTIMES, iteration_ns
from byteprophet.allreduce.timing import Link, Parameter, Timing

from ..thorough import examples, pairs
from .timings import MODELS, SWEEP, of_model


@pytest.fixture(scope="module", autouse=True)
def _searched_once() -> Iterator[None]:
    """A search is deterministic, and ``best_plan`` and several tests make the same ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouping, "best_groups", functools.cache(grouping.best_groups))
        yield


def small(random: Random) -> Timing:
    """Up to seven parameters; mostly ready in the reverse of forward's order."""
    count = random.randint(1, 7)
    ready = [random.randint(0, 100) for _ in range(count)]
    if random.random() < 0.7:
        ready.sort(reverse=True)
    parameters = tuple(
        Parameter(f"p{place}", random.choice([1, 3, 10, 30, 60]), each, random.randint(0, 20))
        for place, each in enumerate(ready)
    )
    link = Link(2, random.choice([4, 8, 16]) * 10**9, random.choice([0, 1, 3, 10]))
    return Timing(parameters, 100, link)


def shortest_ns(runtime: str, timing: Timing) -> int:
    """Of all partitions of the readiness order into runs."""
    order = timing.by_readiness
    inner = range(1, len(order))
    return min(
        iteration_ns(
            runtime, timing, tuple(order[a:b] for a, b in pairwise([0, *cuts, len(order)]))
        )
        for cuts in chain(*(combinations(inner, size) for size in range(len(order))))
    )


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_almost_always_the_best_of_all_partitions(runtime: str) -> None:
    random = Random(7)
    ratios = []
    for _ in range(examples(20, 60)):
        timing = small(random)
        found_ns = iteration_ns(runtime, timing, grouping.best_groups(runtime, timing))
        ratios.append(found_ns / shortest_ns(runtime, timing))
    assert sum(ratio == 1 for ratio in ratios) >= 0.97 * len(ratios)
    assert max(ratios) <= 1.05


@pytest.mark.parametrize(("model", "runtime"), pairs(tuple(MODELS), tuple(RUNTIMES)))
def test_on_networks_as_good_as_every_rule_and_a_sweep_of_sizes(model: str, runtime: str) -> None:
    timing = of_model(model, 1.0, message_cost_ns=300_000)
    groups = grouping.best_groups(runtime, timing)
    assert tuple(chain(*groups)) == timing.by_readiness
    found_ns = iteration_ns(runtime, timing, groups)
    rules = [merged_gradient(timing), *(fixed_size(timing, size) for size in (0, *SWEEP))]
    assert found_ns <= 1.001 * min(iteration_ns(runtime, timing, each) for each in rules)


@pytest.mark.parametrize(
    ("model", "share"),
    # The largest networks at one share, whose groups the test above has found already.
    [*(("resnet50", share) for share in (0.7, 1.4, 2.0)), *((model, 1.0) for model in MODELS)],
)
def test_planned_goes_by_dears_order_only_where_it_would_gain_next_to_nothing(
    model: str, share: float
) -> None:
    timing = of_model(model, share, message_cost_ns=300_000)
    groups, order = best_plan("dear-planned", timing)
    planned_ns = iteration_ns("dear-planned", timing, grouping.best_groups("dear-planned", timing))
    dear_ns = iteration_ns("dear", timing, grouping.best_groups("dear", timing))
    assert predict(timing, groups, order).iteration_ns <= 1.005 * planned_ns
    assert all(order.after_step) == (dear_ns <= 1.005 * planned_ns)
