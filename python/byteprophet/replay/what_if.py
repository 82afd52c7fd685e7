"""What a recorded job would have been: with other links, another policy, more workers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from byteprophet import _core, schedulers
from byteprophet.errors import UserError
from byteprophet.graph.ps_job import Compute, PsJob
from byteprophet.network import payload_bps

_BANDWIDTH, _PLANNED_FOR = "bandwidth_bps", "plan_bandwidth_bps"  # settings


@dataclass(frozen=True)
class Changes:
    """What is different; None: as recorded.

    ``bandwidth_bps``: what each worker's link is configured to, per direction. ``link_latency_ns``:
    one way. ``scheduler`` comes with its own default settings and partition size.
    """

    bandwidth_bps: int | None = None
    scheduler: str | None = None
    partition_bytes: int | None = None
    workers: int | None = None
    servers: int | None = None
    compute_scale: float | None = None
    link_latency_ns: int | None = None

    def __post_init__(self) -> None:
        for name in ("bandwidth_bps", "partition_bytes", "workers", "servers", "compute_scale"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UserError(f"{name.replace('_', ' ')} {value}: must be above 0")
        if self.link_latency_ns is not None and self.link_latency_ns < 0:
            raise UserError(f"link latency {self.link_latency_ns} ns: must not be negative")


def change(job: PsJob, changes: Changes) -> PsJob:
    """``job`` with ``changes``; UserError where they make no sense."""
    if changes.compute_scale is not None:
        scaled = {
            name: np.rint(times_ns * changes.compute_scale).astype(np.int64)
            for name, times_ns in vars(job.compute).items()
        }
        ready_times = tuple(
            (
                tensor,
                priority,
                round(ready_ns * changes.compute_scale),
                round(spread_ns * changes.compute_scale),
            )
            for tensor, priority, ready_ns, spread_ns in job.ready_times
        )
        job = replace(job, compute=Compute(**scaled), ready_times=ready_times)
    if changes.workers is not None:
        job = _with_workers(job, changes.workers)
    network = job.network
    if changes.servers is not None:
        network = replace(network, server_bps=(0,) * changes.servers)
    if changes.bandwidth_bps is not None:
        links = (payload_bps(changes.bandwidth_bps) or 0,) * job.workers
        network = replace(network, worker_bps=links, down_bps=links)
    if changes.link_latency_ns is not None:
        network = replace(network, delay_ns=changes.link_latency_ns)
    job = _with_policy(replace(job, network=network), changes)
    return job if changes == Changes() else _on_its_link(job)


def _with_policy(job: PsJob, changes: Changes) -> PsJob:
    name, kept = changes.scheduler, {}
    if name is None:
        if changes.partition_bytes is None:
            return job
        given = (schedulers.PARTITION, schedulers.LARGEST_PARTITION)
        name, kept = job.scheduler, {n: v for n, v in job.settings.items() if n not in given}
    settings, size = schedulers.resolve(name, kept, changes.partition_bytes)
    return replace(
        job,
        scheduler=name,
        settings=settings,
        partition_bytes=size,
        ready_times=job.ready_times if name in schedulers.PLANNED else (),
    )


def _on_its_link(job: PsJob) -> PsJob:
    """With the partition size that the policy would choose there, and the plan of that link."""
    slowest_bps = min(job.slowest_bps)
    if job.settings.get(_PLANNED_FOR) and slowest_bps:
        job = replace(job, settings={**job.settings, _PLANNED_FOR: slowest_bps})
    if job.scheduler == schedulers.STOCK or not slowest_bps or _BANDWIDTH not in job.settings:
        return job
    link_bps = job.settings[_BANDWIDTH] or slowest_bps
    policy = _core.Policy(job.scheduler, {**job.settings, _BANDWIDTH: link_bps})
    size = policy.preferred_partition_bytes
    if size is None:
        return job
    return replace(job, settings={**job.settings, schedulers.PARTITION: size}, partition_bytes=size)


def _with_workers(job: PsJob, workers: int) -> PsJob:
    """The first ``workers`` of them; more than there are: the same again.

    A worker that is there twice would never be late or early against itself, so its iterations
    are taken in another order the second time.
    """
    times = {}
    for name, times_ns in vars(job.compute).items():
        rows = [
            np.roll(times_ns[worker % job.workers], worker // job.workers, axis=0)
            for worker in range(workers)
        ]
        times[name] = np.stack(rows)
    chosen = [worker % job.workers for worker in range(workers)]
    network = job.network
    down_bps = network.down_bps and tuple(network.down_bps[worker] for worker in chosen)
    up_bps = tuple(network.worker_bps[worker] for worker in chosen)
    network = replace(network, worker_bps=up_bps, down_bps=down_bps)
    return replace(job, compute=Compute(**times), network=network)
