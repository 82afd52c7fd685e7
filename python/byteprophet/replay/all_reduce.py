"""Changes and replays all-reduce jobs, and makes simpler predictions for comparison."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from byteprophet.allreduce.strategies import strategy_for
from byteprophet.errors import UserError
from byteprophet.graph import gloo_graph, mesh_graph
from byteprophet.job import Job, Strategy
from byteprophet.job.as_executed import as_executed
from byteprophet.job.compression import flat_form
from byteprophet.job.owners import Owners
from byteprophet.job.staleness import steps_by_name, with_staleness
from byteprophet.job.strategy import FSDP2, OURS, TORCH_ALL_REDUCE, with_compressed
from byteprophet.replay.engine import replay
from byteprophet.replay.kinds import JobKind, ReplayedJob, of_gradients
from byteprophet.replay.what_if import Changes, limited

_OF_BYTEPS = {
    "scheduler": "--policy",
    "servers": "--servers",
    "partition_bytes": "--partition-bytes",
}
_BEFORE_PER_STEP = 20
"""Replayed before the iterations of a job, for each step by which averages are delayed. If the link
needs 5% longer than computing, it takes as many until a rank has to wait."""


def change(job: Job, changes: Changes) -> Job:
    """Return ``job`` with ``changes``.

    If times or links change, buckets that depend on them are chosen again. If the number of workers
    changes, all own equally much. Raises ``UserError`` if
    a change applies to BytePS only.
    """
    for name, option in _OF_BYTEPS.items():
        if getattr(changes, name) is not None:
            raise UserError(f"{option}: only for jobs of BytePS, but this job does not use it")
    times, cluster = job.times, job.cluster
    if changes.compute_scale is not None:
        times = times.scaled(changes.compute_scale)
        cluster = cluster.with_computing(changes.compute_scale)
    if changes.workers is not None:
        times, cluster = times.of_workers(changes.workers), cluster.with_workers(changes.workers)
    if changes.bandwidth_bps is not None:
        cluster = limited(cluster, changes.bandwidth_bps)
    if changes.link_latency_ns is not None:
        cluster = replace(cluster, costs=replace(cluster.costs, delay_ns=changes.link_latency_ns))
    strategy = job.strategy
    if changes.workers is not None:  # the weights were those of other ranks
        strategy = replace(strategy, owners=())
    changed = replace(job, times=times, cluster=cluster, strategy=strategy)
    return with_updates(replace(changed, strategy=_strategy(changed, changes)), job)


def with_strategy(job: Job, strategy: Strategy) -> Job:
    """Return ``job`` with the buckets of ``strategy``; it computes and changes gradients as before.

    The times of updates are scaled by the size of the shard that each rank updates.
    """
    return with_updates(replace(job, strategy=_bucketed(job.strategy, strategy)), job)


def _bucketed(was: Strategy, buckets: Strategy) -> Strategy:
    """``was`` with the runtime and the buckets of another strategy, sharded where they may be."""
    may_shard = was.shardable
    made = (replace(each, sharded=each.sharded and may_shard) for each in buckets.buckets)
    return replace(
        buckets,
        buckets=tuple(made),
        shardable=may_shard,
        regions=was.regions,
        autocast=was.autocast,
        reduce_dtype=was.reduce_dtype,
        reduce_fixed=was.reduce_fixed,
        accumulation=was.accumulation,
    )


def _strategy(job: Job, changes: Changes) -> Strategy:
    """The recorded buckets, unless ``changes`` ask for others or make the planner choose others."""
    was = job.strategy.runtime
    runtime = changes.runtime or was
    if runtime not in (was, *OURS, *TORCH_ALL_REDUCE):
        known = ", ".join((*OURS, *TORCH_ALL_REDUCE))
        raise UserError(f"--runtime {runtime}: choose one of {known}")
    if runtime != was and {runtime, was} - set(TORCH_ALL_REDUCE) and {runtime, was} - set(OURS):
        raise UserError(
            f"--runtime {runtime}: this job was recorded under {was}, whose transport differs "
            f"from that of {runtime}; record it under one of "
            f"{', '.join(OURS if runtime in OURS else TORCH_ALL_REDUCE)}"
        )
    bucket_bytes = changes.bucket_bytes or (job.strategy.bucket_bytes if runtime == was else 0)
    chosen_by_us = not bucket_bytes and runtime != FSDP2  # whose units are modules of the script
    replans = chosen_by_us and (
        changes.bandwidth_bps is not None
        or changes.workers is not None
        or changes.compute_scale is not None
    )
    if runtime == was and changes.bucket_bytes is None and not replans:
        return job.strategy
    made = _bucketed(job.strategy, strategy_for(job, runtime, bucket_bytes))
    made = with_compressed(made, job.strategy.compressors)
    return with_staleness(made, job.strategy.staleness)


def with_updates(job: Job, was: Job) -> Job:
    """Scale the times of updates by the fraction of each parameter that a worker updates.

    Where a worker has updated nothing, the time of a whole update is the mean of the others'.
    """
    before, after = _updated_shares(was), _updated_shares(job)
    before = before[np.arange(job.workers) % was.workers]
    if np.array_equal(before, after):
        return job
    known = np.broadcast_to((before > 0)[:, None], job.times.update_ns.shape)
    whole_ns = job.times.update_ns / np.where(before > 0, before, 1)[:, None]
    whole_ns = np.where(known, whole_ns, np.mean(whole_ns, axis=0, where=known))
    update_ns = np.rint(whole_ns * after[:, None]).astype(np.int64)
    return replace(job, times=replace(job.times, update_ns=update_ns))


def _updated_shares(job: Job) -> npt.NDArray[np.float64]:
    """The share of each parameter that each rank updates, shape (W, P)."""
    sharded = {
        name for bucket in job.strategy.buckets if bucket.sharded for name in bucket.parameters
    }
    owned = np.array([float(each) for each in Owners.of(job.strategy.owners, job.workers).shares])
    is_sharded = np.array([name in sharded for name in job.model.names])
    return np.where(is_sharded, owned[:, None], 1.0)


def replay_job(job: Job) -> ReplayedJob:
    """Build the graph of ``job`` and replay it.

    If averages are delayed, the first iterations of a replay are faster than all later ones,
    because nothing is in flight at its start. So others come before those that are returned.
    """
    if job.strategy.runtime in OURS:
        steps = max((delay.steps for delay in job.strategy.staleness), default=0)
        before = steps * _BEFORE_PER_STEP
        if before:
            numbers = np.arange(-before, job.iterations) % job.iterations
            job = replace(job, times=job.times.only_iterations(numbers))
        mesh = mesh_graph.build(job)
        begin, end = mesh.begin[:, before:], mesh.end[:, before:]
        return ReplayedJob(replay(mesh.graph), begin, end, job.strategy.steps)
    gloo = gloo_graph.build(job)
    return ReplayedJob(replay(gloo.graph), gloo.begin, gloo.update, job.strategy.accumulation)


def daydream_ns(job: Job) -> int:
    """The iteration time if every bucket had the link to itself."""
    job = as_executed(job)
    layerwise = job.strategy.runtime in OURS
    members = [[job.model.places[name] for name in b.parameters] for b in job.strategy.buckets]
    late = steps_by_name(job.strategy.staleness)
    compressed = {job.model.places[n]: own for n, own in _compressed(job).items() if n not in late}
    slowest_ns = 0.0
    shares = Owners.of(job.strategy.owners, job.workers).shares
    for rank, (host, share) in enumerate(zip(job.cluster.workers, shares, strict=True)):
        forward_ns, ready_ns, _, update_ns = job.times.medians(rank)
        rate_bps = host.slowed_by(job.cluster.costs.host_ns_per_byte).slower_bps
        there_ns = np.zeros(len(job.model))
        for places, bucket in zip(members, job.strategy.buckets, strict=True):
            if bucket.parameters[0] in late:
                continue  # it is there before this iteration
            reduced = gathered = sum(job.wire_bytes[place] for place in places)
            if bucket.sharded:  # the all-gather carries parameters
                gathered = sum(job.model.sizes_bytes[place] for place in places)
            moved = float(1 + (job.workers - 2) * share) * (reduced + gathered) / 2
            travel_ns = moved * 8e9 / rate_bps if rate_bps else 0.0
            there_ns[places] = float(ready_ns[places].max()) + travel_ns
        for place, (sent_bytes, took_ns) in compressed.items():
            travel_ns = sent_bytes * 8e9 / rate_bps if rate_bps else 0.0
            there_ns[place] = float(ready_ns[place]) + took_ns + travel_ns
        if layerwise:
            end_ns = float(ready_ns.max())
            for tensor_there_ns, layer_ns in zip(there_ns + update_ns, forward_ns, strict=True):
                end_ns = max(end_ns, float(tensor_there_ns)) + float(layer_ns)
        else:
            end_ns = float(forward_ns.sum()) + float(there_ns.max()) + float(update_ns.sum())
        slowest_ns = max(slowest_ns, end_ns)
    return round(slowest_ns / job.strategy.steps)


def _compressed(job: Job) -> dict[str, tuple[float, int]]:
    """The bytes that a rank sends of each compressed gradient, and how long it computes for it."""
    costs = job.cluster.costs.compressing
    took_ns = {each.parameter: each.before_ns + each.after_ns for each in costs}
    sizes = dict(zip(job.model.names, job.model.sizes_bytes, strict=True))
    return {
        name: (flat_form(own, sizes[name]).sent_bytes(job.workers), took_ns.get(name, 0))
        for name, own in job.strategy.compressor_of.items()
    }


def assumptions(job: Job) -> dict[str, Any]:
    """The assumptions that ``byteprophet replay --json`` prints (docs/formats.md)."""
    sizes = dict(zip(job.model.names, job.model.sizes_bytes, strict=True))
    costs = job.cluster.costs
    return {
        "collective": "mesh" if job.strategy.runtime in OURS else "ring",
        "runtime": job.strategy.runtime,
        "workers": job.workers,
        "servers": 0,
        "iterations": job.iterations,
        "bucket_bytes": [
            sum(sizes[name] for name in bucket.parameters) for bucket in job.strategy.buckets
        ],
        **of_gradients(job),
        "collectives_at_once": costs.collectives_at_once,
        "owners": list(job.strategy.owners) or None,
        "payload_bps": [host.slower_bps or None for host in job.cluster.workers],
        "delay_ns": costs.delay_ns,
        "host_ns_per_byte": costs.host_ns_per_byte,
    }


ALL_REDUCE = JobKind(change, replay_job, daydream_ns, assumptions)
