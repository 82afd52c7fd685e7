"""Parameter-server jobs: changed, replayed, and the simpler answers beside."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from byteprophet import _core, schedulers
from byteprophet.graph.model import Int64Array
from byteprophet.graph.ps_graph import build
from byteprophet.graph.ps_job import PsJob
from byteprophet.network import payload_bps
from byteprophet.replay.engine import replay
from byteprophet.replay.kinds import JobKind
from byteprophet.replay.what_if import Changes, of_workers, scaled

_BANDWIDTH, _PLANNED_FOR = "bandwidth_bps", "plan_bandwidth_bps"  # settings


def change(job: PsJob, changes: Changes) -> PsJob:
    """``job`` with ``changes``; UserError where they make no sense."""
    if changes.compute_scale is not None:
        ready_times = tuple(
            (
                tensor,
                priority,
                round(ready_ns * changes.compute_scale),
                round(spread_ns * changes.compute_scale),
            )
            for tensor, priority, ready_ns, spread_ns in job.ready_times
        )
        compute = scaled(job.compute, changes.compute_scale)
        job = replace(job, compute=compute, ready_times=ready_times)
    if changes.workers is not None:
        job = _with_workers(job, changes.workers)
    network = job.network
    if changes.servers is not None:
        network = replace(network, server_bps=(0,) * changes.servers)
    if changes.bandwidth_bps is not None:
        links = (payload_bps(changes.bandwidth_bps or None) or 0,) * job.workers
        network = replace(network, worker_bps=links, down_bps=links)
    if changes.link_latency_ns is not None:
        network = replace(network, delay_ns=changes.link_latency_ns)
    job = _with_policy(replace(job, network=network), changes)
    return job if changes == Changes() else _on_its_link(job)


def iterations_ns(job: PsJob) -> Int64Array:
    """Of the slowest worker, shape (iterations,)."""
    built = build(job)
    replayed = replay(built.graph)
    starts_ns = replayed.start_ns[built.begin]
    ends_ns = replayed.end_ns[built.backward[..., -1]]
    slowest: Int64Array = (ends_ns - starts_ns).max(axis=0)
    return slowest


def daydream_ns(job: PsJob) -> int:
    """The iteration if every tensor had the link for itself: its size over the bandwidth, twice."""
    slowest_ns = 0
    for worker in range(job.workers):
        forward_ns, ready_ns, backward_ns = _medians(job, worker)
        rate_bps = job.slowest_bps[worker]
        travel_ns = np.array(job.size_bytes) * 16e9 / rate_bps if rate_bps else 0 * ready_ns
        there_ns = ready_ns + travel_ns
        end_ns = float(backward_ns)
        for tensor_there_ns, layer_ns in zip(there_ns, forward_ns, strict=True):
            end_ns = max(end_ns, float(tensor_there_ns)) + float(layer_ns)
        slowest_ns = max(slowest_ns, round(end_ns))
    return slowest_ns


def bound_ns(job: PsJob) -> int:
    """The shortest iteration that any schedule gives the slowest worker, at its median times."""
    bounds_ns = []
    for worker, rate_bps in enumerate(job.slowest_bps):
        forward_ns, ready_ns, backward_ns = _medians(job, worker)
        bound = _core.iteration_bound_ns(
            list(job.size_bytes),
            ready_ns.tolist(),
            forward_ns.tolist(),
            backward_ns=backward_ns,
            bandwidth_bps=rate_bps or None,
            workers=job.workers,
            servers=job.servers,
            server_bandwidth_bps=None,
        )
        bounds_ns.append(bound)
    return max(bounds_ns)


def assumptions(job: PsJob) -> dict[str, Any]:
    """As ``byteprophet replay --json`` prints them (docs/formats.md)."""
    network = job.network
    return {
        "scheduler": job.scheduler,
        "settings": dict(job.settings),
        "partition_bytes": job.partition_bytes,
        "workers": job.workers,
        "servers": job.servers,
        "iterations": job.iterations,
        "payload_bps": [rate or None for rate in network.worker_bps],
        "answers_bps": [rate or None for rate in network.down_bps],
        "message_cost_ns": network.message_cost_ns,
        "delay_ns": network.delay_ns,
        "sum_ns_per_byte": network.sum_ns_per_byte,
        "hand_over_ns": network.hand_over_ns,
        "request_lag_ns": int(np.median(network.request_lags_ns))
        if network.request_lags_ns
        else None,
        "ack_lag_ns": network.ack_lag_ns,
    }


PS = JobKind(change, iterations_ns, daydream_ns, bound_ns, assumptions)


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
    compute = of_workers(job.compute, workers, job.workers)
    network = job.network
    up_bps, down_bps = (
        tuple(links[worker % job.workers] for worker in range(workers)) if links else links
        for links in (network.worker_bps, network.down_bps)
    )
    network = replace(network, worker_bps=up_bps, down_bps=down_bps)
    return replace(job, compute=compute, network=network)


def _medians(job: PsJob, worker: int) -> tuple[Int64Array, Int64Array, int]:
    """Of one worker, over all iterations: forward and ready times (L,), backward."""
    compute = job.compute
    forward_ns = np.median(compute.forward_ns[worker], axis=0).astype(np.int64)
    ready_ns = np.median(compute.ready_ns[worker], axis=0).astype(np.int64)
    return forward_ns, ready_ns, int(np.median(compute.backward_ns[worker]))
