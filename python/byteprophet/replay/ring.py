"""All-reduce jobs: changed, replayed, and the simpler answers beside."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from byteprophet import _core
from byteprophet.errors import UserError
from byteprophet.graph.model import Int64Array
from byteprophet.graph.ring_graph import build
from byteprophet.graph.ring_job import RingJob
from byteprophet.network import payload_bps
from byteprophet.replay.engine import replay
from byteprophet.replay.kinds import JobKind
from byteprophet.replay.what_if import Changes, of_workers, scaled
from byteprophet.workload.bound import all_reduced_bytes

_OF_BYTEPS = {
    "scheduler": "--policy",
    "servers": "--servers",
    "partition_bytes": "--partition-bytes",
}


def change(job: RingJob, changes: Changes) -> RingJob:
    """``job`` with ``changes``; UserError for what only BytePS has."""
    for name, option in _OF_BYTEPS.items():
        if getattr(changes, name) is not None:
            raise UserError(f"{option}: this job all-reduces without BytePS, which alone has that")
    compute, network = scaled(job.compute, changes.compute_scale), job.network
    if changes.workers is not None:
        compute = of_workers(compute, changes.workers, job.workers)
        links = network.worker_bps
        links = tuple(links[rank % job.workers] for rank in range(changes.workers))
        network = replace(network, worker_bps=links)
    if changes.bandwidth_bps is not None:
        link_bps = payload_bps(changes.bandwidth_bps or None) or 0
        network = replace(network, worker_bps=(link_bps,) * len(network.worker_bps))
    if changes.link_latency_ns is not None:
        network = replace(network, delay_ns=changes.link_latency_ns)
    return replace(job, compute=compute, network=network)


def iterations_ns(job: RingJob) -> Int64Array:
    """Of the slowest rank, shape (iterations,)."""
    built = build(job)
    replayed = replay(built.graph)
    slowest: Int64Array = (replayed.end_ns[built.update] - replayed.start_ns[built.begin]).max(0)
    return slowest


def daydream_ns(job: RingJob) -> int:
    """The iteration if every bucket had the link for itself."""
    slowest_ns = 0
    for rank, rate_bps in enumerate(job.network.worker_bps):
        forward_ns, bucket_ns, update_ns = (
            np.median(times_ns[rank], axis=0)
            for times_ns in (job.compute.forward_ns, job.compute.bucket_ns, job.compute.update_ns)
        )
        travel_ns = _moved_bytes(job, job.bucket_bytes) * 8e9 / rate_bps if rate_bps else 0
        there_ns = float((bucket_ns + travel_ns).max())
        slowest_ns = max(slowest_ns, round(float(forward_ns.sum()) + there_ns + float(update_ns)))
    return slowest_ns


def bound_ns(job: RingJob) -> int:
    """The shortest iteration that any schedule of the layers' gradients gives the slowest rank."""
    bounds_ns = []
    for rank, rate_bps in enumerate(job.network.worker_bps):
        forward_ns, gradient_ns = (
            np.median(times_ns[rank], axis=0).astype(np.int64)
            for times_ns in (job.compute.forward_ns, job.compute.gradient_ns)
        )
        backward_ns = int(np.median(job.compute.bucket_ns[rank].max(axis=1)))
        bound = _core.iteration_bound_ns(
            _moved_bytes(job, job.size_bytes).tolist(),
            gradient_ns.tolist(),
            forward_ns.tolist(),
            backward_ns=backward_ns,
            bandwidth_bps=rate_bps or None,
            workers=job.workers,
            servers=job.workers,
            server_bandwidth_bps=None,
        )
        bounds_ns.append(bound)
    return max(bounds_ns)


def assumptions(job: RingJob) -> dict[str, Any]:
    """As ``byteprophet replay --json`` prints them (docs/formats.md)."""
    return {
        "collective": "ring",
        "workers": job.workers,
        "servers": 0,
        "iterations": job.iterations,
        "bucket_bytes": list(job.bucket_bytes),
        "collectives_at_once": job.at_once,
        "payload_bps": [rate_bps or None for rate_bps in job.network.worker_bps],
        "delay_ns": job.network.delay_ns,
        "host_ns_per_byte": job.network.host_ns_per_byte,
    }


RING = JobKind(change, iterations_ns, daydream_ns, bound_ns, assumptions)


def _moved_bytes(job: RingJob, size_bytes: tuple[int, ...]) -> Int64Array:
    """What every rank sends of tensors of these sizes, and receives."""
    return np.array([all_reduced_bytes(size, job.workers) for size in size_bytes], np.int64)
