"""Small jobs, with servers and without."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from byteprophet import schedulers
from byteprophet.allreduce.strategies import strategy_for
from byteprophet.job import Cluster, Costs, Host, Job, Model, Parameter, Policy, Strategy, Times
from byteprophet.job.strategy import BYTEPS

SIZES = (400_000, 2_000_000, 6_000_000, 2_000_000, 400_000, 1_000_000)
NAMES = ("in", "layer.0", "large", "layer.1", "out.0", "out.1")
COSTS = Costs(delay_ns=200_000, message_cost_ns=50_000)


def _times(workers: int) -> Times:
    shape = (workers, 6, len(SIZES))
    return Times(
        forward_ns=np.full(shape, 5 * 10**6),
        ready_ns=np.broadcast_to(np.array([60, 50, 40, 30, 20, 10]) * 10**6, shape),
        backward_ns=np.full(shape[:2], 60 * 10**6),
        update_ns=np.full(shape, 20_000),
    )


def one_gradient(ranks: int, update_ns: int = 10**6) -> tuple[Model, Times]:
    """One gradient of 8 MB, in three iterations: 3 ms forward, 10 ms backward, ready at its end."""
    shape = (ranks, 3, 1)
    times = Times(
        forward_ns=np.full(shape, 3 * 10**6),
        ready_ns=np.full(shape, 10**7),
        backward_ns=np.full(shape[:2], 10**7),
        update_ns=np.full(shape, update_ns),
    )
    return Model((Parameter("large", 8_000_000),)), times


def _hosts(rates_bps: Sequence[int]) -> tuple[Host, ...]:
    return tuple(Host(rate_bps, rate_bps) for rate_bps in rates_bps)


def served_job(worker_bps: Sequence[int], server_bps: Sequence[int]) -> Job:
    """Under fifo, with partitions of up to 1 MB."""
    settings, partition_bytes = schedulers.resolve("fifo", {}, 1_000_000)
    return Job(
        Model(tuple(map(Parameter, NAMES, SIZES))),
        _times(len(worker_bps)),
        Cluster(_hosts(worker_bps), _hosts(server_bps), COSTS),
        Strategy(BYTEPS, partition_bytes=partition_bytes),
        Policy("fifo", settings),
    )


def mesh_job(worker_bps: Sequence[int], runtime: str = "allreduce") -> Job:
    """With the buckets that ``runtime`` plans."""
    job = Job(
        Model(tuple(map(Parameter, NAMES, SIZES))),
        _times(len(worker_bps)),
        Cluster(_hosts(worker_bps), costs=COSTS),
        Strategy(runtime),
    )
    return Job(job.model, job.times, job.cluster, strategy_for(job, runtime))
