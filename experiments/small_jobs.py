"""Small jobs without servers, drawn by lot, and what regions of their models cost."""

from __future__ import annotations

import itertools
import random

import numpy as np

from byteprophet.allreduce.strategies import strategy_for
from byteprophet.job import Cluster, Costs, Host, Job, Model, Parameter, Strategy, Times
from byteprophet.job.region_costs import ModeCost, RegionCost, RegionCosts, Unit
from byteprophet.job.strategy import COMPILED, EAGER, OURS


def random_job(seed: int, parameters: int, ranks: int = 2) -> Job:
    """Links and computation are about as slow as each other; backward runs from back to front."""
    lot = random.Random(seed)
    sizes = [lot.choice((4_000, 40_000, 400_000, 1_600_000)) for _ in range(parameters)]
    forward_ns = [lot.randrange(200_000, 4_000_000) for _ in range(parameters)]
    ready_ns = np.cumsum([2 * time_ns for time_ns in reversed(forward_ns)])[::-1]
    shape = (ranks, 8, parameters)
    noise = np.random.default_rng(seed).normal(1, 0.02, shape)
    rate_bps = round(sum(sizes) * 8e9 / (lot.uniform(0.5, 1.5) * int(ready_ns[0])))
    job = Job(
        Model(tuple(Parameter(f"p{place}.weight", size) for place, size in enumerate(sizes))),
        Times(
            forward_ns=(np.array(forward_ns) * noise).astype(np.int64),
            ready_ns=np.sort((ready_ns * noise).astype(np.int64))[..., ::-1].copy(),
            backward_ns=np.full(shape[:2], round(int(ready_ns[0]) * 1.1), np.int64),
            update_ns=np.full(shape, 20_000, np.int64),
        ),
        Cluster(
            (Host(rate_bps, rate_bps),) * ranks,
            costs=Costs(delay_ns=50_000, message_cost_ns=100_000, start_lag_ns=200_000),
        ),
        Strategy(OURS[0]),
    )
    return with_runtime(job, lot.choice(OURS), lot.choice((1, 500_000, 100_000_000)))


def with_runtime(job: Job, runtime: str, bucket_bytes: int) -> Job:
    """``job`` under a runtime of ours, in buckets of so many bytes."""
    return Job(job.model, job.times, job.cluster, strategy_for(job, runtime, bucket_bytes))


def region_costs_of(job: Job, seed: int) -> RegionCosts:
    """Each parameter is a module's; what a region saves grows with its length, by lot."""
    lot = random.Random(seed)
    units: list[Unit] = [(name.removesuffix(".weight"),) for name in job.model.names]
    regions = {}
    for first, last in itertools.combinations(range(len(units) + 1), 2):
        names = job.model.names[first:last]
        saved = lot.uniform(-0.05, 0.15) + 0.03 * (last - first)
        compiled = round(1e6 * (1 - saved)) * (last - first)
        eager_ready_ns = tuple(1_000_000 * n for n in range(last - first, 0, -1))
        regions[sum(units[first:last], ())] = RegionCost(
            names,
            {
                EAGER: ModeCost(500_000 * len(names), 1_000_000 * len(names), eager_ready_ns),
                COMPILED: ModeCost(compiled // 2, compiled, (compiled,) * len(names), 10**9),
            },
            {},
        )
    return RegionCosts((tuple(units),), regions)
