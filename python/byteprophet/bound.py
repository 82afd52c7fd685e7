"""The shortest iteration that any schedule can give a job (prophet/bound.h).

*With servers*, every gradient passes a worker's link once in each direction.

*Without servers*, two things hold of an all-reduce among P ranks, whatever the algorithm, as long
as no switch sums and a message about an element carries a sum of ranks' parts of it:

- What a rank computes must leave it, and must reach every other rank. So for each pair of ranks, at
  least as many bytes as the gradient has leave the one after it computed them, and reach the other
  before its next forward pass needs them.
- Of each element, every rank's part must reach every other rank, in messages that go one way. That
  is gossip by one-way calls, which takes at least 2 (P - 1) of them (Harary and Schwenk, "The
  communication problem on graphs and digraphs", 1974). So all ranks together send, and receive,
  at least 2 (P - 1) times the bytes, from when the first rank is ready on.

So on links with rates b, an all-reduce of one byte takes at least

    max( 1 / min b,  2 (P - 1) / sum b )

If all links are equal, the second is larger, and is what every rank sends if all ranks own equally
much. If links differ, owners' shares reach it (``allreduce/levelled.py``), and equal ones do not.

Ranks need not be in step. One that waits for nobody may compute its next gradients while it still
sends its last averages to a rank that computes less. So what one rank gives another bounds no
iteration. But what goes there and comes back bounds two iterations: the mean of both ways is a
bound.

*With delayed averages*, an iteration does not wait for its own gradient of a parameter. So such a
gradient only counts among all bytes, which must pass the links in every iteration.

*With two transports*, both kinds of bytes share the workers' links. What is here is a bound for the
routes of the strategy: gradients that go to servers pass each link of a worker once, and the others
as above; and all workers' pushes pass the servers' links. Other routes may have a lower one.

*If the script waits for all averages* before it updates, nothing that it computes later overlaps
with an exchange. That does not hold where shards are updated: their all-gathers come later.

*Behind a limiter*, a link that was idle lets a burst pass at once. So an iteration may wait for as
many bytes less than it has. Over many iterations, no link carries more than its rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from byteprophet import _core
from byteprophet.job import Job
from byteprophet.job.as_executed import as_executed
from byteprophet.job.cluster import slower_of_bps
from byteprophet.job.routes import MESH, SERVERS, bytes_of
from byteprophet.job.staleness import steps_by_name
from byteprophet.job.strategy import BYTEPS, MIXED, SHARDING
from byteprophet.job.times import Int64Array


@dataclass(frozen=True)
class Ranks:
    """What ranks compute in an iteration, and their links.

    Attributes:
        ready_ns: when each rank's gradients are ready, from the start of its backward pass, shape
            (ranks, parameters).
        forward_ns: of each rank's layers, (ranks, parameters).
        backward_ns: when each rank's backward pass ends, (ranks,).
        up_bps: the rate at which each rank sends, (ranks,); 0: no limit.
        down_bps: the rate at which each rank receives, likewise.
        burst_bytes: what each rank's link lets pass at once after a pause, (ranks,).
    """

    ready_ns: Int64Array
    forward_ns: Int64Array
    backward_ns: Sequence[int]
    up_bps: Sequence[int]
    down_bps: Sequence[int]
    burst_bytes: Sequence[int]

    @classmethod
    def of(cls, job: Job) -> Ranks:
        """The ranks of ``job``, at the medians of its times."""
        medians = [job.times.medians(worker) for worker in range(job.workers)]
        hosts = job.cluster.workers
        return cls(
            np.array([np.minimum(ready_ns, end_ns) for _, ready_ns, end_ns, _ in medians]),
            np.array([forward_ns for forward_ns, _, _, _ in medians]),
            [backward_ns for _, _, backward_ns, _ in medians],
            [host.up_bps for host in hosts],
            [host.down_bps for host in hosts],
            [host.burst_bytes for host in hosts],
        )


def bound_of_predicted_ns(job: Job, predicted_ns: int, since: int = 0) -> int:
    """The bound of a job that is predicted to take ``predicted_ns``, the median of its iterations.

    Those before number ``since``, from 0, do not count, as in the prediction. The bound adds up
    medians of parts. Where iterations differ, these are from different ones, and may be more than
    the median of all. But what is predicted is the time of a schedule, so the bound is not above.
    """
    counted = job.times.only_iterations(np.arange(since, job.iterations))
    return min(predicted_ns, bound_ns(replace(job, times=counted)))


def bound_ns(job: Job) -> int:
    """The shortest iteration of the slowest worker, at the medians of its times.

    If several steps share an exchange, it is the time of one of them.
    """
    job = _waiting(as_executed(job))
    runtime, wire_bytes = job.strategy.runtime, job.wire_bytes
    if runtime == BYTEPS:
        all_steps_ns = _served_ns(job, wire_bytes)
    elif runtime == MIXED:
        served_bytes, meshed_bytes = _routed_bytes(job)
        all_steps_ns = max(
            _served_ns(job, served_bytes), _among_ranks_ns(job, meshed_bytes, served_bytes)
        )
    else:
        all_steps_ns = _among_ranks_ns(job, wire_bytes)
    return all_steps_ns // job.strategy.steps


def _waiting(job: Job) -> Job:
    """``job`` with a forward pass that needs all at its begin, if updates wait for all averages.

    What follows the last gradient may come before the wait: the script decides that.
    """
    times, strategy = job.times, job.strategy
    shards = strategy.shardable and not {strategy.runtime, strategy.mesh}.isdisjoint(SHARDING)
    if not times.waits_for_all or shards:
        return job
    forward_ns = np.zeros_like(times.forward_ns)
    forward_ns[..., -1] = times.forward_ns.sum(axis=2)
    return replace(job, times=replace(times, forward_ns=forward_ns))


def _routed_bytes(job: Job) -> tuple[Sequence[int], Sequence[int]]:
    """What of each gradient goes to servers on the wire, and what over the mesh."""
    divisor = 2 if job.strategy.reduce_dtype else 1
    served, meshed = (
        [size_bytes // divisor for size_bytes in bytes_of(job.model, job.strategy.routes, way)]
        for way in (SERVERS, MESH)
    )
    return served, meshed


def _among_ranks_ns(
    job: Job, sizes_bytes: Sequence[int], served_bytes: Sequence[int] | None = None
) -> int:
    late = steps_by_name(job.strategy.staleness)
    is_late = [name in late for name in job.model.names]
    return all_reduce_bound_ns(sizes_bytes, Ranks.of(job), served_bytes, is_late)


def _served_ns(job: Job, sizes_bytes: Sequence[int]) -> int:
    served_bps = [host.slower_bps for host in job.cluster.servers]
    # All servers together must take in all pushes, whichever of them gets what.
    server_bps = -(-sum(served_bps) // len(served_bps)) if served_bps and all(served_bps) else None
    bounds_ns = []
    for worker, host in enumerate(job.cluster.workers):
        forward_ns, ready_ns, backward_ns, _ = job.times.medians(worker)
        awaited_ns = _of_link_ns(
            sizes_bytes,
            np.minimum(ready_ns, backward_ns),
            forward_ns,
            backward_ns,
            host.slower_bps,
            host.burst_bytes,
        )
        bounds_ns += [awaited_ns, passed_ns(sizes_bytes, host.slower_bps)]
    if server_bps:
        bounds_ns.append(_by_servers_ns(job, sizes_bytes, server_bps))
    return max(bounds_ns)


def _by_servers_ns(job: Job, sizes_bytes: Sequence[int], server_bps: int) -> int:
    """The bound by what all servers take in together; ``server_bps``: the rate of one, on average.

    As in ``together_ns``, each worker counts with the earliest of all workers' times, and with its
    part of the servers' rates and bursts.
    """
    workers, computed = job.workers, Ranks.of(job)
    rate_bps = -(-job.servers * server_bps // workers)
    burst_bytes = -(-sum(host.burst_bytes for host in job.cluster.servers) // workers)
    awaited_ns = _of_link_ns(
        sizes_bytes,
        computed.ready_ns.min(axis=0),
        computed.forward_ns.min(axis=0),
        int(min(computed.backward_ns)),
        rate_bps,
        burst_bytes,
    )
    return max(awaited_ns, passed_ns(sizes_bytes, rate_bps))


def _of_link_ns(
    sizes_bytes: Sequence[int],
    ready_ns: Int64Array,
    forward_ns: Int64Array,
    backward_ns: int,
    rate_bps: int,
    burst_bytes: int = 0,
) -> int:
    """How long gradients (P,) take over one link, from the backward pass to the end of the forward.

    ``rate_bps`` 0: the link has no limit.
    """

    def bound(limit_bps: int | None) -> int:
        return _core.iteration_bound_ns(
            sizes_bytes,
            ready_ns.tolist(),
            forward_ns.tolist(),
            backward_ns=backward_ns,
            bandwidth_bps=limit_bps,
            workers=1,
            servers=1,
        )

    if not rate_bps:
        return bound(None)
    if not burst_bytes:
        return bound(rate_bps)
    return max(bound(None), bound(rate_bps) - burst_bytes * 8 * 10**9 // rate_bps)


def passed_ns(sizes_bytes: Sequence[int], rate_bps: int) -> int:
    """How long a link is busy with as many bytes; ``rate_bps`` 0: it has no limit."""
    return sum(sizes_bytes) * 8 * 10**9 // rate_bps if rate_bps else 0


def there_and_back_ns(sizes_bytes: Sequence[int], ranks: Ranks) -> int:
    """The bound by what each rank must give each other one: the slowest pair's mean of both ways.

    No rank is faster than it computes.
    """
    columns = [ranks.backward_ns, ranks.up_bps, ranks.down_bps, ranks.burst_bytes]
    rows = np.column_stack([ranks.ready_ns, ranks.forward_ns, *map(np.asarray, columns)])
    _, different, counts = np.unique(rows, axis=0, return_index=True, return_counts=True)

    def one_way_ns(sender: int, receiver: int, rate_bps: int) -> int:
        return _of_link_ns(
            sizes_bytes,
            ranks.ready_ns[sender],
            ranks.forward_ns[receiver],
            ranks.backward_ns[sender],
            rate_bps,
            max(ranks.burst_bytes[sender], ranks.burst_bytes[receiver]),
        )

    bounds_ns = [one_way_ns(rank, rank, 0) for rank in different]
    pairs = [*combinations(different, 2), *((rank, rank) for rank in different[counts > 1])]
    for one, other in pairs:
        there_ns, back_ns = (
            one_way_ns(
                sender, receiver, slower_of_bps(ranks.up_bps[sender], ranks.down_bps[receiver])
            )
            for sender, receiver in ((one, other), (other, one))
        )
        bounds_ns.append((there_ns + back_ns) // 2)
    return max(bounds_ns)


def together_ns(sizes_bytes: Sequence[int], ranks: Ranks, rate_bps: int) -> int:
    """The bound by what all ranks move together, by the earliest of each of their times.

    ``rate_bps``: at which they move so many bytes, on average.
    """
    return _of_link_ns(
        sizes_bytes,
        ranks.ready_ns.min(axis=0),
        ranks.forward_ns.min(axis=0),
        int(min(ranks.backward_ns)),
        rate_bps,
        max(ranks.burst_bytes),
    )


def all_reduce_bound_ns(
    sizes_bytes: Sequence[int],
    ranks: Ranks,
    served_bytes: Sequence[int] | None = None,
    late: Sequence[bool] | None = None,
) -> int:
    """The bound of an iteration without servers, in ns.

    Args:
        sizes_bytes: of the gradients, in forward order, shape (parameters,).
        ranks: what they compute, and their links.
        served_bytes: what goes to servers beside that, of each gradient: once over each link.
        late: whether the average of each gradient is for a later step.
    """
    count = len(ranks.up_bps)
    is_late = late or [False] * len(sizes_bytes)

    def awaited(moved_bytes: Sequence[int]) -> list[int]:
        return [0 if later else size for size, later in zip(moved_bytes, is_late, strict=True)]

    served = served_bytes or [0] * len(sizes_bytes)
    pairs = list(zip(sizes_bytes, served, strict=True))
    once = [(size if count > 1 else 0) + other for size, other in pairs]
    on_average = [all_reduced_bytes(size, count) + other for size, other in pairs]
    bounds_ns = [
        there_and_back_ns(awaited(once), ranks),
        *(passed_ns(once, rate_bps) for rate_bps in (*ranks.up_bps, *ranks.down_bps)),
    ]
    for rates_bps in (ranks.up_bps, ranks.down_bps):
        if all(rates_bps):
            rate_bps = -(-sum(rates_bps) // count)
            awaited_ns = together_ns(awaited(on_average), ranks, rate_bps)
            bounds_ns += [awaited_ns, passed_ns(on_average, rate_bps)]
    return max(bounds_ns)


def all_reduced_bytes(size_bytes: int, workers: int) -> int:
    """What workers send on average, and receive, of an all-reduce of so many bytes.

    If all own equally much, (workers - 1) / workers of them to reduce and as much to gather.
    """
    return size_bytes * 2 * (workers - 1) // workers
