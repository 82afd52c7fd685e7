"""Chooses buckets and their order for a job, as each runtime would choose them.

The plan uses the medians of the times recorded on the worker with the longest computation, the
rates of all links, and the job's owners. ``torch/retuning/planning.py`` plans in the same way while
a job trains, but from the times of rank 0 and, if all ranks own equally much, from its link.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from byteprophet.allreduce.grouping import best_plan
from byteprophet.allreduce.groups import Groups, fixed_size, merged_gradient
from byteprophet.allreduce.model import Order
from byteprophet.allreduce.order import RUNTIMES, dear
from byteprophet.allreduce.timing import Link, Parameter, Timing
from byteprophet.job import Bucket, Job, Strategy
from byteprophet.job.as_executed import as_executed
from byteprophet.job.strategy import DDP, DEAR, DEAR_PLANNED, FSDP2, WFBP

MESSAGE_NS = 100_000
"""The cost in ns of a reduce-scatter or all-gather beyond its bytes, as the runtimes assume it."""

DDP_BUCKET_BYTES = 25 << 20
"""DistributedDataParallel's default limit of a bucket."""

DDP_FIRST_BUCKET_BYTES = 1 << 20
"""torch.distributed._DEFAULT_FIRST_BUCKET_BYTES: a small bucket that starts communication early."""

WFBP_MESSAGE_NS = 1_000_000
"""The same cost for WFBP, by default: an all-reduce of 64 bytes by gloo takes 2 ms."""

_UNKNOWN_BPS = 10**15  # a link so fast that only messages cost


def timing_of(job: Job, message_cost_ns: int = MESSAGE_NS) -> Timing:
    """The timing of ``job`` that the planner uses. Sizes are those on the wire."""
    job = as_executed(job)
    computes_ns = job.times.forward_ns.sum(axis=2) + job.times.backward_ns
    worker = int(np.argmax(np.median(computes_ns, axis=1)))
    forward_ns, ready_ns, backward_ns, _ = job.times.medians(worker)
    rates_bps = [host.slower_bps or _UNKNOWN_BPS for host in job.cluster.workers]
    link = Link.of_ranks(rates_bps, message_cost_ns, job.strategy.owners)
    parameters = tuple(
        Parameter(name, max(1, size_bytes), int(ready), int(forward))
        for name, size_bytes, ready, forward in zip(
            job.model.names, job.wire_bytes, ready_ns, forward_ns, strict=True
        )
    )
    return Timing(parameters, max(backward_ns, int(ready_ns.max())), link)


def strategy_for(job: Job, runtime: str, bucket_bytes: int = 0) -> Strategy:
    """The strategy that ``runtime`` would use for ``job``.

    Buckets have ``bucket_bytes``, or, if that is 0, are planned by the runtime. DDP and FSDP2 do
    not plan; they use 1 MiB.
    """
    if bucket_bytes or runtime in (DDP, FSDP2):  # limits are for gradients in their own type
        job = replace(job, strategy=replace(job.strategy, reduce_dtype=""))
    if runtime == WFBP:
        timing = timing_of(job, WFBP_MESSAGE_NS)
        groups = fixed_size(timing, bucket_bytes) if bucket_bytes else merged_gradient(timing)
        return _in_order(runtime, timing, groups, bucket_bytes)
    timing = timing_of(job)
    if runtime == DDP:
        size_bytes = bucket_bytes or DDP_FIRST_BUCKET_BYTES
        return _in_order(runtime, timing, ddp_groups(timing, size_bytes), size_bytes)
    if runtime == FSDP2:
        return _units(timing, bucket_bytes or DDP_FIRST_BUCKET_BYTES)
    if not bucket_bytes:
        return best_strategy(timing, runtime)
    groups = fixed_size(timing, bucket_bytes)
    # Without a plan, "dear-planned" is DeAR with all-gathers that carry gradients.
    order = (dear if runtime == DEAR_PLANNED else RUNTIMES[runtime])(timing, groups)
    strategy = _planned(runtime, timing, groups, order, bucket_bytes)
    if runtime == DEAR:
        return strategy
    whole = tuple(replace(bucket, sharded=False) for bucket in strategy.buckets)
    return replace(strategy, buckets=whole)


def best_strategy(timing: Timing, runtime: str) -> Strategy:
    """The strategy that ``runtime``, one of ours, plans for ``timing``."""
    return _planned(runtime, timing, *best_plan(runtime, timing))


def strategy_of_groups(timing: Timing, runtime: str, groups: Groups) -> Strategy:
    """The strategy that has ``groups`` as buckets, in the order of ``runtime``.

    ``runtime`` is one of ours, or DDP, whose order is that of the groups.
    """
    if runtime == DDP:
        return _in_order(runtime, timing, groups, 0)
    return _planned(runtime, timing, groups, RUNTIMES[runtime](timing, groups))


def _planned(
    runtime: str, timing: Timing, groups: Groups, order: Order, bucket_bytes: int = 0
) -> Strategy:
    buckets = (
        Bucket(
            _names(timing, group),
            order.reduce[number],
            order.gather[number],
            order.after_step[number],
        )
        for number, group in enumerate(groups)
    )
    return Strategy(runtime, tuple(buckets), bucket_bytes, owners=timing.link.owners)


def ddp_groups(timing: Timing, bucket_bytes: int) -> Groups:
    """DistributedDataParallel's buckets, after it has seen the order in which gradients are ready.

    A bucket ends with the gradient that makes it reach its limit
    (``compute_bucket_assignment_by_size`` in torch's reducer.cpp). The limit is ``bucket_bytes``.
    If that is the default of 25 MiB, the limit of the first bucket is 1 MiB.
    """
    places = timing.by_readiness
    ends = ddp_ends([timing.parameters[place].size_bytes for place in places], bucket_bytes)
    return tuple(places[start:end] for start, end in pairwise([0, *ends]))


def ddp_ends(sizes_bytes: Sequence[int], bucket_bytes: int) -> list[int]:
    """Where the buckets of ``ddp_groups`` end among gradients of these sizes, as these are ready.

    An end is the number of gradients in the bucket and in those before.
    """
    ends: list[int] = []
    filled_bytes = 0
    for end, size_bytes in enumerate(sizes_bytes, 1):
        filled_bytes += size_bytes
        starts = not ends and bucket_bytes == DDP_BUCKET_BYTES
        limit_bytes = DDP_FIRST_BUCKET_BYTES if starts else bucket_bytes
        if filled_bytes >= limit_bytes or end == len(sizes_bytes):
            ends.append(end)
            filled_bytes = 0
    return ends


def _in_order(runtime: str, timing: Timing, groups: Groups, bucket_bytes: int) -> Strategy:
    """A strategy of all-reduces of whole buckets, in the order of ``groups``."""
    buckets = (Bucket(_names(timing, group), number, number) for number, group in enumerate(groups))
    return Strategy(runtime, tuple(buckets), bucket_bytes)


def _units(timing: Timing, unit_bytes: int) -> Strategy:
    """FSDP2's units: neighbours in forward order, of at least ``unit_bytes``.

    Parameters whose gradients are ready at the same time stay in one unit.
    """
    units: list[list[int]] = [[]]
    for place, parameter in enumerate(timing.parameters):
        filled_bytes = sum(timing.parameters[member].size_bytes for member in units[-1])
        together = place and parameter.ready_ns == timing.parameters[place - 1].ready_ns
        if units[-1] and filled_bytes >= unit_bytes and not together:
            units.append([])
        units[-1].append(place)
    count = len(units)
    buckets = (
        Bucket(_names(timing, unit), 2 * count - number, number, sharded=True)
        for number, unit in enumerate(units)
    )
    return Strategy(FSDP2, tuple(buckets), unit_bytes)


def _names(timing: Timing, group: Sequence[int]) -> tuple[str, ...]:
    return tuple(timing.parameters[place].name for place in group)
