"""Compiled regions: legal moves, and the search against all ways to cut a chain."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from small_jobs import random_job
from small_jobs import region_costs_of as costs_of

from byteprophet.job import Job
from byteprophet.job.region_costs import RegionCosts
from byteprophet.job.strategy import Region
from byteprophet.optimize.evaluate import Evaluator
from byteprophet.optimize.moves import Hints, NeedsRegionCosts
from byteprophet.optimize.passes.compile import Compile
from byteprophet.optimize.regions import times_with
from byteprophet.optimize.search import search

UNITS = 5


def learned(job: Job, costs: RegionCosts) -> Compile:
    made = Compile()
    assert isinstance(made, NeedsRegionCosts)
    made.learn(job, costs)
    return made


def all_regions(costs: RegionCosts) -> Iterator[tuple[Region, ...]]:
    """Every way to cut the chain into runs, each compiled or, if it is of one module, eager."""
    (chain,) = costs.chains
    for cuts in range(1 << (len(chain) - 1)):
        ends = [place + 1 for place in range(len(chain) - 1) if cuts >> place & 1]
        runs = [chain[a:b] for a, b in itertools.pairwise([0, *ends, len(chain)])]
        choices = [(True, False) if len(run) == 1 else (True,) for run in runs]
        for compiled in itertools.product(*choices):
            yield tuple(
                Region(sum(run, ()), compiled=True)
                for run, chosen in zip(runs, compiled, strict=True)
                if chosen
            )


def test_moves_are_of_measured_regions_that_do_not_overlap() -> None:
    job = random_job(3, UNITS)
    costs = costs_of(job, 3)
    pass_ = learned(job, costs)
    at = [move.job for move in pass_.starts(job)]
    assert at
    for before in at:
        moves = list(pass_.moves(before, Hints()))
        assert moves
        for move in moves:
            regions = move.job.strategy.regions
            modules = [module for region in regions for module in region.modules]
            assert len(set(modules)) == len(modules), move.what
            assert all(region.modules in costs.regions for region in regions), move.what
            assert regions != before.strategy.regions, move.what
            assert move.job.strategy.buckets == job.strategy.buckets
            expected = times_with(job.times, job.model, move.job.strategy, costs)
            assert np.array_equal(move.job.times.ready_ns, expected.ready_ns)
            assert np.array_equal(move.job.times.forward_ns, expected.forward_ns)


def test_a_job_that_has_regions_already_is_left_alone() -> None:
    job = random_job(3, UNITS)
    costs = costs_of(job, 3)
    strategy = replace(job.strategy, regions=(Region(("p0",), compiled=True),))
    changed = replace(job, strategy=strategy)
    pass_ = learned(changed, costs)
    assert not [*pass_.starts(changed), *pass_.moves(changed, Hints())]


def test_the_search_finds_what_all_cuts_find() -> None:
    """Buckets stay as they are, so that the best of all regions is known."""
    above = []
    for seed in range(200, 206):
        job = random_job(seed, UNITS)
        costs = costs_of(job, seed)
        found = search(job, [learned(job, costs)], budget_s=600.0)
        evaluate = Evaluator()
        best_ns = min(
            evaluate(
                replace(
                    job,
                    times=times_with(job.times, job.model, strategy, costs),
                    strategy=strategy,
                )
            ).iteration_ns
            for regions in all_regions(costs)
            for strategy in (replace(job.strategy, regions=regions),)
        )
        above.append(found.best.iteration_ns / best_ns - 1)
    assert np.median(above) <= 0.01
    assert max(above) <= 0.05
