"""Changes and replays jobs of two transports, and makes simpler predictions for comparison."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from byteprophet.errors import UserError
from byteprophet.graph import mixed_graph
from byteprophet.job import Cluster, Job
from byteprophet.job.as_executed import as_executed
from byteprophet.job.routes import MESH, SERVERS, bytes_of
from byteprophet.replay import ps
from byteprophet.replay.all_reduce import with_updates
from byteprophet.replay.engine import replay
from byteprophet.replay.kinds import JobKind, ReplayedJob
from byteprophet.replay.what_if import Changes, limited

_OF_ONE_TRANSPORT = {
    "scheduler": "--policy",
    "servers": "--servers",
    "partition_bytes": "--partition-bytes",
    "runtime": "--runtime",
    "bucket_bytes": "--bucket-bytes",
}


def change(job: Job, changes: Changes) -> Job:
    """Return ``job`` with ``changes``. Its strategy stays, but other workers own equally much.

    Raises ``UserError`` for a change that its strategy decides.
    """
    for name, option in _OF_ONE_TRANSPORT.items():
        if getattr(changes, name) is not None:
            raise UserError(f"{option}: the strategy of a job of two transports decides this")
    times, cluster, strategy = job.times, job.cluster, job.strategy
    if changes.compute_scale is not None:
        times = times.scaled(changes.compute_scale)
        cluster = cluster.with_computing(changes.compute_scale)
    if changes.workers is not None:
        times, cluster = times.of_workers(changes.workers), cluster.with_workers(changes.workers)
        strategy = replace(strategy, owners=())
    if changes.bandwidth_bps is not None:
        cluster = limited(cluster, changes.bandwidth_bps)
    if changes.link_latency_ns is not None:
        cluster = _with_delay(cluster, changes.link_latency_ns)
    return with_updates(replace(job, times=times, cluster=cluster, strategy=strategy), job)


def _with_delay(cluster: Cluster, delay_ns: int) -> Cluster:
    costs, mesh_costs = cluster.costs, cluster.mesh_costs
    return replace(
        cluster,
        costs=replace(costs, delay_ns=delay_ns),
        mesh_costs=None if mesh_costs is None else replace(mesh_costs, delay_ns=delay_ns),
    )


def replay_job(job: Job) -> ReplayedJob:
    """Build the graph of ``job`` and replay it."""
    built = mixed_graph.build(job)
    return ReplayedJob(replay(built.graph), built.begin, built.end, job.strategy.accumulation)


def daydream_ns(job: Job) -> int:
    """The iteration time if every gradient had the links to itself.

    What goes to servers takes twice its size divided by the bandwidth, and what P ranks all-reduce
    2 (P - 1) / P times.
    """
    job, slowest_ns = as_executed(job), 0
    divisor = 2 if job.strategy.reduce_dtype else 1
    served, meshed = (
        np.array(bytes_of(job.model, job.strategy.routes, way)) / divisor for way in (SERVERS, MESH)
    )
    moved_bytes = 2 * served + 2 * (job.workers - 1) / job.workers * meshed
    for worker, host in enumerate(job.cluster.workers):
        forward_ns, ready_ns, backward_ns, update_ns = job.times.medians(worker)
        travel_ns = moved_bytes * 8e9 / host.slower_bps if host.slower_bps else 0 * moved_bytes
        end_ns = float(backward_ns)
        for there_ns, layer_ns in zip(ready_ns + travel_ns + update_ns, forward_ns, strict=True):
            end_ns = max(end_ns, float(there_ns)) + float(layer_ns)
        slowest_ns = max(slowest_ns, round(end_ns))
    return slowest_ns // job.strategy.accumulation


def assumptions(job: Job) -> dict[str, Any]:
    """The assumptions that ``byteprophet replay --json`` prints (docs/formats.md)."""
    mesh_costs = job.cluster.mesh_costs or job.cluster.costs
    served_bytes = sum(bytes_of(job.model, job.strategy.routes, SERVERS))
    return {
        **ps.assumptions(job),
        "runtime": job.strategy.runtime,
        "mesh": job.strategy.mesh,
        "to_servers": served_bytes / job.model.size_bytes,
        "owners": list(job.strategy.owners) or None,
        "mesh_delay_ns": mesh_costs.delay_ns,
        "host_ns_per_byte": mesh_costs.host_ns_per_byte,
    }


MIXED_KIND = JobKind(change, replay_job, daydream_ns, assumptions)
