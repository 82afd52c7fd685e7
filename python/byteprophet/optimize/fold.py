"""A job of many workers as one of two: dPRO's symmetry of workers.

Two workers stand for all. What the others would do to the links and threads that workers share is
done by making these slower:

- Without servers, every rank sends each other one its shard of a bucket, over a connection of its
  own. So a rank sends (W - 1) / W of a bucket in each half of an iteration, and half of it if there
  are two ranks: two ranks on links that are slower by that ratio are as busy. A connection of many
  ranks carries fewer frames, and all connections of a rank are in the middle of one when something
  more urgent is ready. So the two ranks send frames that are W / 2 times as large.
- With servers, W workers share each server's links and threads. For two workers these are slower by
  W / 2, and an answer costs the server's link as much as W / 2 of them.

All workers stand for themselves if they share cores: what all of them compute then adds up, and the
latest of all in each respect compute more than two of them do.

Without servers, all workers stand for themselves if links differ, if ranks own unequal shards, or
if gradients are compressed, because no two ranks then have the loads of all.

What is lost: where workers compute differently, only the latest times are looked at, and where
links to servers differ, the slowest two. So a search may use the folded job, but what it finds must
be replayed unfolded.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from byteprophet.graph.mesh_transfers import FRAME_BYTES
from byteprophet.job import Cluster, Host, Job
from byteprophet.job.strategy import BYTEPS
from byteprophet.job.times import Int64Array, Times

_KEPT = 2


def folded(job: Job) -> Job:
    """``job`` with two workers; the same job if it has no more, or needs all."""
    served = job.strategy.runtime == BYTEPS
    alike = len({(host.up_bps, host.down_bps) for host in job.cluster.workers}) == 1
    alone = job.strategy.owners or job.strategy.compressors
    if job.workers <= _KEPT or job.cluster.processors or not (served or (alike and not alone)):
        return job
    hosts = sorted(job.cluster.workers, key=lambda host: host.slower_bps or np.inf)[:_KEPT]
    kept = tuple(hosts)
    cluster = _served(job, kept) if served else _mesh(job, kept)
    return replace(job, times=_times(job.times), cluster=cluster)


def frame_bytes(job: Job, small: Job) -> int:
    """The size of the frames in ``small``, which stands for ``job``."""
    return FRAME_BYTES * job.workers // small.workers


def _times(times: Times) -> Times:
    """The times of two workers: of the latest in each respect, and of the slowest in all.

    A gradient is averaged when the last worker has computed it, so the first one has each gradient
    when the last worker has it, and the forward pass of the worker that is slowest in this
    iteration.
    """
    slowest = int(np.argmax(np.median(times.backward_ns, axis=1)))
    iterations = np.arange(times.iterations)
    last = times.forward_ns.sum(axis=2).argmax(axis=0)

    def both(latest_ns: Int64Array, times_ns: Int64Array) -> Int64Array:
        return np.stack([latest_ns, times_ns[slowest]])

    return Times(
        forward_ns=both(times.forward_ns[last, iterations], times.forward_ns),
        ready_ns=both(times.ready_ns.max(axis=0), times.ready_ns),
        backward_ns=both(times.backward_ns.max(axis=0), times.backward_ns),
        update_ns=both(times.update_ns[last, iterations], times.update_ns),
        passes=times.passes,
        between_ns=None
        if times.between_ns is None
        else both(times.between_ns[last, iterations], times.between_ns),
        waits_for_all=times.waits_for_all,
    )


def _mesh(job: Job, hosts: tuple[Host, ...]) -> Cluster:
    ratio = job.workers / (2 * (job.workers - 1))
    costs = job.cluster.costs
    costs = replace(costs, host_ns_per_byte=costs.host_ns_per_byte / ratio)
    return Cluster(tuple(_scaled(host, ratio) for host in hosts), costs=costs)


def _scaled(host: Host, ratio: float) -> Host:
    return replace(host, up_bps=round(host.up_bps * ratio), down_bps=round(host.down_bps * ratio))


def _served(job: Job, hosts: tuple[Host, ...]) -> Cluster:
    ratio, costs = _KEPT / job.workers, job.cluster.costs
    return Cluster(
        hosts,
        tuple(_scaled(server, ratio) for server in job.cluster.servers),
        replace(
            costs,
            sum_ns_per_byte=costs.sum_ns_per_byte / ratio,
            answer_cost_ns=round((costs.message_cost_ns + costs.answer_cost_ns) / ratio)
            - costs.message_cost_ns,
        ),
    )
