"""Compiled regions: legal moves, and the search against all ways to cut a chain."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from small_jobs import random_job, region_costs_of, with_runtime

from byteprophet.job import Cluster, Host, Job, Model, Parameter, Strategy, Times
from byteprophet.job.region_costs import ModeCost, RegionCost, RegionCosts
from byteprophet.job.strategy import ALL_REDUCE, BF16, COMPILED, EAGER, OURS, Region
from byteprophet.optimize.evaluate import Evaluator
from byteprophet.optimize.moves import Hints, NeedsRegionCosts
from byteprophet.optimize.passes.compile import Compile
from byteprophet.optimize.region_changes import RegionChanges
from byteprophet.optimize.regions import times_with
from byteprophet.optimize.search import search
from byteprophet.optimize.serial_link import SerialLink

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
    costs = region_costs_of(job, 3)
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
            if "one bucket" not in move.what:
                assert move.job.strategy.buckets == before.strategy.buckets
            expected = times_with(job.times, job.model, move.job.strategy, costs)
            assert np.array_equal(move.job.times.ready_ns, expected.ready_ns)
            assert np.array_equal(move.job.times.forward_ns, expected.forward_ns)


@pytest.mark.parametrize("runtime", OURS)
def test_gradients_of_a_new_region_may_share_a_bucket(runtime: str) -> None:
    """Theorem 3 is offered together with the region; others stay in their buckets."""
    job = with_runtime(random_job(3, 8), runtime, 1)
    costs = region_costs_of(job, 3)
    by = learned(job, costs)
    first = by.with_regions(job, [Region(("p2",), compiled=True)])
    assert first is not None
    hints = Evaluator()(first).hints
    together = [move for move in by.moves(first, hints) if "one bucket" in move.what]
    assert together
    for move in together:
        buckets = move.job.strategy.buckets
        named = sorted(name for bucket in buckets for name in bucket.parameters)
        assert named == sorted(job.model.names)
        (region,) = move.job.strategy.regions
        (shared,) = (bucket for bucket in buckets if len(bucket.parameters) > 1)
        assert sorted(shared.parameters) == sorted(costs.regions[region.modules].parameters)
        assert move.job.strategy.runtime == runtime
        assert bool(move.theorem) <= (runtime == ALL_REDUCE)


def test_moves_stand_in_the_order_of_what_is_expected() -> None:
    """The first half gains more than the second, by replay, and nearly all of Theorem 1's do."""
    first, second, expected = [], [], []
    for seed in range(300, 312):
        job = with_runtime(random_job(seed, 7), ALL_REDUCE, 500_000)
        evaluate = Evaluator()
        was = evaluate(job)
        moves = [*learned(job, region_costs_of(job, seed)).moves(job, was.hints)]
        gains = [was.iteration_ns - evaluate(move.job).iteration_ns for move in moves]
        first.append(sum(gains[: len(gains) // 2]))
        second.append(sum(gains[len(gains) // 2 :]))
        expected += [gain for move, gain in zip(moves, gains, strict=True) if move.theorem]
    assert sum(first) > sum(second)
    assert len(expected) > 20
    assert sum(gain > 0 for gain in expected) > 0.9 * len(expected)


def test_a_gradient_on_the_critical_path_counts_under_other_runtimes() -> None:
    """Two regions as one save 1 ms; the later gradients come 9 ms later."""
    job = with_runtime(random_job(3, 2), "dear", 1)
    times = replace(
        job.times,
        ready_ns=np.broadcast_to([20_000_000, 10_000_000], (2, 8, 2)),
        backward_ns=np.full((2, 8), 20_000_000),
    )
    job = replace(job, times=times)
    eager = ModeCost(0, 20_000_000, (20_000_000, 10_000_000))
    both = ModeCost(0, 19_000_000, (19_000_000, 19_000_000))
    cost = RegionCost(job.model.names, {EAGER: eager, COMPILED: both}, {})
    by = learned(job, RegionCosts(((("p0",), ("p1",)),), {("p0", "p1"): cost}))
    strategy = replace(job.strategy, regions=(Region(("p0", "p1"), compiled=True),))
    bucket = next(n for n, b in enumerate(job.strategy.buckets) if "p1.weight" in b.parameters)

    def gain_ns(hints: Hints) -> int:
        return RegionChanges(by, job, hints).expected(strategy, job.model.names, fuses=True).gain_ns

    assert abs(gain_ns(Hints()) - 1_000_000) < 10_000 + job.times.forward_ns.max()
    delayed = gain_ns(Hints()) - gain_ns(Hints(bucket_ns={bucket: 1}))
    assert delayed == 9_000_000


def test_theorems_speak_of_gradients_as_they_travel() -> None:
    """Two regions as one save 1 ms, and both gradients are sent when the later one is ready.

    A gradient takes 3 ms to be cast, and the link 4 ms. Apart, they are ready after 13 and 26 ms,
    and sent after 17 and 30 ms. Together, they are ready after 25 ms, and sent after 33 ms.
    """
    cluster = Cluster((Host(8 * 10**9, 8 * 10**9),) * 2)
    shape = (2, 8, 2)
    times = Times(
        forward_ns=np.zeros(shape, np.int64),
        ready_ns=np.broadcast_to([20_000_000, 10_000_000], shape),
        backward_ns=np.full(shape[:2], 20_000_000),
        update_ns=np.zeros(shape, np.int64),
    )
    names = ("p0.weight", "p1.weight")
    model = Model(tuple(Parameter(name, 8_000_000) for name in names))
    job = with_runtime(Job(model, times, cluster, Strategy(ALL_REDUCE)), ALL_REDUCE, 1)
    eager = ModeCost(0, 20_000_000, (20_000_000, 10_000_000))
    both = ModeCost(0, 19_000_000, (19_000_000, 19_000_000))
    cost = RegionCost(names, {EAGER: eager, COMPILED: both}, {})
    by = learned(job, RegionCosts(((("p0",), ("p1",)),), {("p0", "p1"): cost}))
    cast = replace(job.strategy, reduce_dtype="bf16")
    cluster = replace(cluster, costs=replace(cluster.costs, cast_ns_per_byte=3 / 8))
    job = replace(job, cluster=cluster, strategy=cast)
    strategy = replace(cast, regions=(Region(("p0", "p1"), compiled=True),))
    hints = Hints(link=SerialLink.of(job, (13_000_000, 26_000_000)))
    found = RegionChanges(by, job, hints).expected(strategy, names, fuses=True)
    assert found.gain_ns == 30_000_000 - 33_000_000


def test_a_region_must_be_faster_in_the_precision_of_the_job() -> None:
    """Compiled, these save nothing in single precision, and half of their time in bfloat16."""
    job = random_job(3, 2)
    plain, fast = (ModeCost(0, took_ns, (took_ns, took_ns)) for took_ns in (100, 50))
    modes = {EAGER: plain, COMPILED: plain, BF16: plain, f"{COMPILED}-{BF16}": fast}
    whole, run = ("",), ("p0", "p1")
    regions = {modules: RegionCost(job.model.names, modes, {}) for modules in (whole, run)}
    by = learned(job, RegionCosts(((whole,), (run,)), regions))
    cast = by.changed(job, replace(job.strategy, autocast=True))
    assert cast is not None
    assert [*by.starts(job), *by.moves(job, Hints())] == []
    for moves in (by.starts(cast), by.moves(cast, Hints())):
        assert Region(run, compiled=True) in [
            region for move in moves for region in move.job.strategy.regions
        ]


def test_a_job_that_has_regions_already_is_left_alone() -> None:
    job = random_job(3, UNITS)
    costs = region_costs_of(job, 3)
    strategy = replace(job.strategy, regions=(Region(("p0",), compiled=True),))
    changed = replace(job, strategy=strategy)
    pass_ = learned(changed, costs)
    assert not [*pass_.starts(changed), *pass_.moves(changed, Hints())]


def test_the_search_finds_what_all_cuts_find() -> None:
    """Buckets stay as they are, so that the best of all regions is known."""
    above = []
    for seed in range(200, 206):
        job = random_job(seed, UNITS)
        costs = region_costs_of(job, seed)
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
