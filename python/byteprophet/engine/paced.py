"""Paced jobs, as ``bench.Case`` describes them, on a simulated network."""

from __future__ import annotations

from collections.abc import Mapping

from byteprophet import schedulers
from byteprophet.errors import UserError
from byteprophet.job import Cluster, Costs, Host, Job, Policy, Strategy
from byteprophet.job.partitions import numbers_of
from byteprophet.network import payload_bps
from byteprophet.workload import Workload
from byteprophet.workload.as_job import model_of, times_of

COSTS = Costs(delay_ns=200_000, message_cost_ns=30_000)
"""What messages cost where nothing was measured."""


def paced_job(
    workload: Workload,
    scheduler: str,
    settings: Mapping[str, int] | None = None,
    *,
    partition_bytes: int | None = None,
    workers: int = 2,
    servers: int = 1,
    bandwidth_bps: int | None = None,
    worker_bandwidth_bps: Mapping[int, int | None] | None = None,
    server_bandwidth_bps: int | None = None,
    costs: Costs = COSTS,
) -> Job:
    """A job of ``workload``; UserError where it makes no sense.

    Links have the rates that they would be configured to: ``bandwidth_bps`` each worker's, per
    direction; ``worker_bandwidth_bps`` those, by index, that have another; ``server_bandwidth_bps``
    each server's. None: not limited. ``settings`` and ``partition_bytes`` override the scheduler's
    own.
    """
    for what, count in (("workers", workers), ("servers", servers)):
        if count < 1:
            raise UserError(f"simulated job: {what} must be at least 1")
    own = worker_bandwidth_bps or {}
    for worker in own:
        if not 0 <= worker < workers:
            raise UserError(f"simulated job: worker_bandwidth_bps: there is no worker {worker}")
    known, size_bytes = schedulers.resolve(scheduler, settings or {}, partition_bytes)
    rates_bps = [payload_bps(own.get(worker, bandwidth_bps)) or 0 for worker in range(workers)]
    served_bps = payload_bps(server_bandwidth_bps) or 0
    return Job(
        model_of(workload),
        times_of(workload, workers),
        Cluster(
            tuple(Host(rate, rate) for rate in rates_bps),
            (Host(served_bps, served_bps),) * servers,
            costs,
        ),
        Strategy(
            partition_bytes=size_bytes,
            numbers=numbers_of([tensor.name for tensor in workload.tensors]),
        ),
        Policy(scheduler, known),
    )
