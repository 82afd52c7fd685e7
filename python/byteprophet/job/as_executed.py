"""A job's times under its strategy, if that casts gradients or keeps them for several steps.

Passes change a job's strategy, and leave its times as they were recorded: one forward and one
backward pass, with gradients that travel as they are. Whoever replays a job, or asks for its bound,
first takes what is really executed from here.

Casting: a worker casts each gradient when it is ready, in its backward pass, so all later gradients
are late by as much. It casts the average back before its update.

Accumulation: of N steps, only the last exchanges gradients. So an iteration here is N of the
script's steps: a first forward pass that waits for updates, N - 1 backward and forward passes that
wait for nothing, and a last backward pass. The passes in between take what they took in the N - 1
recorded iterations that follow. So what is late on one rank in one step evens out over N of them.

Local SGD: N steps, each with its own updates, share one exchange of all parameters. It begins at
the end of the last step, and the next forward pass waits for it, layer by layer.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from byteprophet.job.job import Job
from byteprophet.job.times import Int64Array, Times


def as_executed(job: Job) -> Job:
    """``job`` with the times of its strategy; the same if they have all of that already.

    Raises ``ValueError`` if it was recorded with another number of accumulated steps.
    """
    if job.strategy.local_sgd:
        return _locally(job)
    times, strategy, costs = job.times, job.strategy, job.cluster.costs
    sizes_bytes = np.array(job.model.sizes_bytes, dtype=np.int64)
    keeps = strategy.accumulation != times.passes
    if keeps and times.passes > 1:
        raise ValueError(f"times of {times.passes} passes for {strategy.accumulation} steps")
    if keeps:
        keep_ns = np.rint(sizes_bytes * costs.keep_ns_per_byte).astype(np.int64)
        # It is added to the last gradient, and the sum divided.
        times = _delayed(
            _accumulated(times, strategy.accumulation, int(keep_ns.sum())), 2 * keep_ns
        )
    if strategy.reduce_dtype and costs.cast_ns_per_byte:
        cast_ns = np.rint(sizes_bytes * costs.cast_ns_per_byte).astype(np.int64)
        times = _delayed(times, cast_ns)
        times = replace(times, update_ns=times.update_ns + cast_ns)
    if times is job.times:
        return job
    costs = replace(costs, cast_ns_per_byte=0.0, keep_ns_per_byte=0.0)
    return replace(job, times=times, cluster=replace(job.cluster, costs=costs))


def _locally(job: Job) -> Job:
    times, steps = job.times, job.strategy.local_sgd
    if times.passes == steps:
        return job
    if times.passes > 1:
        raise ValueError(f"times of {times.passes} passes for {steps} steps")
    updates_ns = times.update_ns.sum(axis=2)
    end_ns = np.maximum(times.backward_ns, times.ready_ns.max(axis=2)) + updates_ns
    times = replace(
        _accumulated(times, steps, updates_ns),
        ready_ns=np.repeat(end_ns[..., None], len(job.model), axis=2),
        backward_ns=end_ns,
        update_ns=np.zeros_like(times.update_ns),
        waits_for_all=False,  # steps use their own gradients
    )
    return replace(job, times=times)


def _accumulated(times: Times, steps: int, keep_ns: Int64Array | int) -> Times:
    """``keep_ns``: what a step takes besides, (W, I) or the same in all."""
    backward_ns = np.maximum(times.backward_ns, times.ready_ns.max(axis=2))
    step_ns = times.forward_ns.sum(axis=2) + backward_ns + keep_ns
    forward_ns = times.forward_ns.copy()
    for later in range(1, steps):
        forward_ns[..., -1] += np.roll(step_ns, -later, axis=1)
    return replace(times, forward_ns=forward_ns, passes=steps)


def _delayed(times: Times, extra_ns: Int64Array) -> Times:
    """Each gradient (P,) takes longer in the backward pass; those that are ready later wait."""
    order = np.lexsort(
        (np.broadcast_to(-np.arange(len(extra_ns)), times.ready_ns.shape), times.ready_ns)
    )
    late_ns = np.cumsum(extra_ns[order], axis=2)
    ready_ns = times.ready_ns.copy()
    in_order = np.take_along_axis(ready_ns, order, axis=2) + late_ns
    np.put_along_axis(ready_ns, order, in_order, axis=2)
    return replace(times, ready_ns=ready_ns, backward_ns=times.backward_ns + extra_ns.sum())
