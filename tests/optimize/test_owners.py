"""The pass that gives ranks with slow links less: legal moves, exact, and worth it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small_jobs import random_job

from byteprophet.allreduce.strategies import strategy_for
from byteprophet.bound import bound_ns
from byteprophet.job import Cluster, Host, Job
from byteprophet.job.owners import Owners
from byteprophet.job.strategy import ALL_REDUCE, DEAR_PLANNED, OURS
from byteprophet.optimize.evaluate import Evaluator
from byteprophet.optimize.fold import folded
from byteprophet.optimize.moves import Hints
from byteprophet.optimize.passes.owners import OwnersPass
from byteprophet.optimize.passes.runtime import Runtime
from byteprophet.optimize.search import search

LONG_S = 600.0


def unequal(
    seed: int, ranks: int = 4, slow: int = 1, scale: float = 1.0, parameters: int = 12
) -> Job:
    """The last links are half as fast, and all of them are scaled."""
    job = random_job(seed, parameters, ranks)
    fast_bps = round(job.cluster.workers[0].up_bps * scale)
    rates_bps = [fast_bps] * (ranks - slow) + [fast_bps // 2] * slow
    hosts = tuple(Host(rate_bps, rate_bps) for rate_bps in rates_bps)
    job = replace(job, cluster=Cluster(hosts, costs=job.cluster.costs))
    return replace(job, strategy=strategy_for(job, job.strategy.runtime))


@pytest.mark.parametrize("seed", range(4))
def test_moves_change_owners_and_nothing_else(seed: int) -> None:
    job = unequal(seed, ranks=3 + seed % 2)
    owners = OwnersPass()
    starts = [*owners.starts(job)]
    assert [move.job.strategy.runtime for move in starts] == [ALL_REDUCE, DEAR_PLANNED]
    for start in starts:
        moves = [*owners.moves(start.job, Hints())]
        assert len(moves) > 2
        for move in moves:
            changed = Owners.of(move.job.strategy.owners, job.workers)
            assert changed != Owners.of(start.job.strategy.owners, job.workers), move.what
            assert move.job.strategy.buckets == start.job.strategy.buckets
            assert move.job.cluster == job.cluster
            assert np.array_equal(move.job.times.ready_ns, job.times.ready_ns)
            # Together, ranks update each parameter as often as before.
            assert move.job.times.update_ns.sum() == pytest.approx(
                start.job.times.update_ns.sum(), rel=0.05
            )


def test_where_links_are_alike_nothing_is_offered() -> None:
    owners = OwnersPass()
    for job in (random_job(1, 8, 4), unequal(1, ranks=2)):
        assert not [*owners.starts(job), *owners.moves(job, Hints())]


def test_unequal_weights_on_equal_links_may_become_equal() -> None:
    job = random_job(1, 8, 4)
    job = replace(job, strategy=replace(job.strategy, owners=(1, 1, 1, 0)))
    starts = [*OwnersPass().starts(job)]
    assert {move.job.strategy.owners for move in starts} == {()}
    assert folded(job) is job


@pytest.mark.parametrize("slow", [1, 2])
def test_where_links_are_the_limit_the_first_weights_gain_most(slow: int) -> None:
    """Links alone would allow 1.5; first and last buckets, and messages, take their part."""
    job = unequal(1, slow=slow, scale=0.5, parameters=40)
    evaluate = Evaluator()
    equal_ns, levelled_ns = (
        min(evaluate(move.job).iteration_ns for move in each.starts(job))
        for each in (Runtime(), OwnersPass())
    )
    assert equal_ns / levelled_ns > 1.25
    assert levelled_ns >= bound_ns(job)


def test_the_search_uses_weights() -> None:
    job = unequal(2, scale=0.5)
    found = search(job, (Runtime(), OwnersPass()), budget_s=LONG_S)
    assert found.best.job.strategy.runtime in OURS
    assert found.best.job.strategy.owners
    assert "owners" in {decision.by for decision in found.best.decisions}
    assert found.best.iteration_ns == Evaluator()(found.best.job).iteration_ns
    assert found.best.iteration_ns >= 0.97 * bound_ns(found.best.job)
