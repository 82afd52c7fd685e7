"""Changes and replays parameter-server jobs, and makes simpler predictions for comparison."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from byteprophet import schedulers
from byteprophet.errors import UserError
from byteprophet.graph.ps_graph import build
from byteprophet.job import Host, Job, Policy, Strategy
from byteprophet.job.as_executed import as_executed
from byteprophet.job.cluster import slower_of_bps
from byteprophet.order_statistics import median
from byteprophet.replay.engine import replay
from byteprophet.replay.kinds import JobKind, ReplayedJob, of_gradients
from byteprophet.replay.what_if import Changes, limited


def change(job: Job, changes: Changes) -> Job:
    """Return ``job`` with ``changes``. Raises ``UserError`` if they do not apply."""
    for name, option in (("runtime", "--runtime"), ("bucket_bytes", "--bucket-bytes")):
        if getattr(changes, name) is not None:
            raise UserError(f"{option}: this job has servers, not buckets")
    policy, times, cluster = job.push_policy, job.times, job.cluster
    if changes.compute_scale is not None:
        ready_times = tuple(
            (
                tensor,
                priority,
                round(ready_ns * changes.compute_scale),
                round(spread_ns * changes.compute_scale),
            )
            for tensor, priority, ready_ns, spread_ns in policy.ready_times
        )
        times, policy = (
            times.scaled(changes.compute_scale),
            replace(policy, ready_times=ready_times),
        )
    if changes.workers is not None:
        times, cluster = times.of_workers(changes.workers), cluster.with_workers(changes.workers)
    if changes.servers is not None:
        cluster = replace(cluster, servers=(Host(),) * changes.servers)
        job = replace(job, strategy=_hashed(job.strategy))
    if changes.bandwidth_bps is not None:
        cluster = limited(cluster, changes.bandwidth_bps)
    if changes.link_latency_ns is not None:
        cluster = replace(cluster, costs=replace(cluster.costs, delay_ns=changes.link_latency_ns))
    job = _with_policy(replace(job, times=times, cluster=cluster, policy=policy), changes)
    if changes == Changes():
        return job
    return on_link(job, slower_of_bps(*(host.slower_bps for host in job.cluster.workers)))


def replay_job(job: Job) -> ReplayedJob:
    """Build the graph of ``job`` and replay it."""
    built = build(job)
    end, steps = built.backward[..., -1], job.strategy.accumulation
    return ReplayedJob(replay(built.graph), built.begin, end, steps)


def daydream_ns(job: Job) -> int:
    """The iteration time if every tensor had the link to itself.

    A tensor then takes twice its size divided by the bandwidth.
    """
    job, slowest_ns = as_executed(job), 0
    for worker in range(job.workers):
        forward_ns, ready_ns, backward_ns, _ = job.times.medians(worker)
        rate_bps = job.cluster.workers[worker].slower_bps
        travel_ns = np.array(job.wire_bytes) * 16e9 / rate_bps if rate_bps else 0 * ready_ns
        there_ns = ready_ns + travel_ns
        end_ns = float(backward_ns)
        for tensor_there_ns, layer_ns in zip(there_ns, forward_ns, strict=True):
            end_ns = max(end_ns, float(tensor_there_ns)) + float(layer_ns)
        slowest_ns = max(slowest_ns, round(end_ns))
    return slowest_ns // job.strategy.accumulation


def assumptions(job: Job) -> dict[str, Any]:
    """The assumptions that ``byteprophet replay --json`` prints (docs/formats.md)."""
    costs, policy = job.cluster.costs, job.push_policy
    return {
        "scheduler": policy.name,
        "settings": dict(policy.settings),
        "partition_bytes": job.strategy.partition_bytes,
        **of_gradients(job),
        "workers": job.workers,
        "servers": job.servers,
        "iterations": job.iterations,
        "payload_bps": [host.up_bps or None for host in job.cluster.workers],
        "answers_bps": [host.down_bps or None for host in job.cluster.workers],
        "message_cost_ns": costs.message_cost_ns,
        "delay_ns": costs.delay_ns,
        "sum_ns_per_byte": costs.sum_ns_per_byte,
        "hand_over_ns": costs.hand_over_ns,
        "request_lag_ns": int(median(costs.request_lags_ns)) if costs.request_lags_ns else None,
        "ack_lag_ns": costs.ack_lag_ns,
    }


PS = JobKind(change, replay_job, daydream_ns, assumptions)


def _hashed(strategy: Strategy) -> Strategy:
    """No gradient is placed: with other servers, BytePS' hash decides on all of them."""
    keys = tuple(replace(each, servers=()) for each in strategy.keys if each.partition_bytes)
    return replace(strategy, keys=keys)


def _with_policy(job: Job, changes: Changes) -> Job:
    policy, name, kept = job.push_policy, changes.scheduler, {}
    if name is None:
        if changes.partition_bytes is None:
            return job
        given = (schedulers.PARTITION, schedulers.LARGEST_PARTITION)
        name, kept = policy.name, {n: v for n, v in policy.settings.items() if n not in given}
    settings, size = schedulers.resolve(name, kept, changes.partition_bytes)
    ready_times = policy.ready_times if name in schedulers.PLANNED else ()
    return _with_partitions(replace(job, policy=Policy(name, settings, ready_times)), size)


def on_link(job: Job, slowest_bps: int) -> Job:
    """``job`` with the partition size and the plan that its policy would choose for such a link.

    0: the link has no limit.
    """
    policy = job.push_policy
    if policy.settings.get(schedulers.PLANNED_FOR):
        # A controller plans for the new link, and workers agree anew (job/agreed_order.py).
        planned_bps = 0 if policy.settings.get(schedulers.COMMON_ORDER) else slowest_bps
        settings = {**policy.settings, schedulers.PLANNED_FOR: planned_bps}
        policy = replace(policy, settings=settings)
        job = replace(job, policy=policy)
    given_bps = policy.settings.get(schedulers.BANDWIDTH)  # None: the policy knows no such setting
    if policy.name == schedulers.STOCK or not slowest_bps or given_bps is None:
        return job
    size = schedulers.preferred_partition_bytes(
        policy.name, policy.settings, given_bps or slowest_bps
    )
    if size is None:
        return job
    settings = {**policy.settings, schedulers.PARTITION: size}
    return _with_partitions(replace(job, policy=replace(policy, settings=settings)), size)


def _with_partitions(job: Job, partition_bytes: int) -> Job:
    return replace(job, strategy=replace(job.strategy, partition_bytes=partition_bytes))
