"""The builder ``mixed``: servers sum a fraction x of all bytes, and the ranks all-reduce the rest.

Let P workers and S servers have links of one rate. Over a worker's link then pass x + (1 - x) a of
all bytes, with a = 2 (P - 1) / P, and P x / S over a server's. Both are equal at

    x* = 2 S (P - 1) / (P^2 + S (P - 2)),

which is the fraction of Theorem 1 in the BytePS paper (Jiang et al., OSDI 2020), where the ranks
are servers on the workers' hosts. If rates differ, the slowest worker's counts, and the sum of the
servers': then S is not the number of servers, but that sum over the worker's rate.

TCP divides a worker's link among its connections: S of S + P - 1 lead to servers. If both
transports always have something to send, servers get S / (S + P - 1) of it. That is enough for
a fraction x with x / (x + (1 - x) a) = S / (S + P - 1), which is x = 2 S / (P + 2 S). The builder
takes the smaller one of the two fractions. ``mixed-paced`` takes x*, and makes the front pace the
mesh at its share of the link, so that servers get theirs (``torch/sync/pacing.py``).

Gradients alternate in forward order, so that the fraction holds for every beginning of the forward
pass. Large ones are cut in two, and small ones go where the running sum is short.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from byteprophet import schedulers
from byteprophet.allreduce.grouping import best_groups
from byteprophet.allreduce.strategies import MESSAGE_NS, strategy_of_groups, timing_of
from byteprophet.allreduce.timing import Link, Timing
from byteprophet.allreduce.timing import Parameter as Timed
from byteprophet.errors import UserError
from byteprophet.job import Cluster, Job, Model, Policy
from byteprophet.job.owners import Owners
from byteprophet.job.partitions import PAGE_BYTES, partitions_of_job
from byteprophet.job.routes import (
    MESH,
    SERVERS,
    Part,
    Piece,
    Route,
    bytes_of,
    carried,
    check_mesh_bps,
    parts_of,
)
from byteprophet.job.strategy import DEAR_PLANNED, FP16, MIXED, Bucket, Keys
from byteprophet.job.transports import served
from byteprophet.optimize.passes.placement import placed_by_load
from byteprophet.replay.all_reduce import with_updates
from byteprophet.runtime_settings import DEFAULT_FUSION_BYTES

_WHOLE_OF_ALL = 32
"""A gradient of more than this part of all bytes is cut. So the fraction of bytes to servers is off
by 1/64 of all of them at most, wherever the forward pass stands."""

_QUEUE_NS = 25_000_000
"""How long a byte waits in front of a link that the mesh fills: TCP keeps the queue of the device
full. On emulated links, it is 20 ms and the burst long."""


def fraction_of(workers: int, servers: int, rates: float = 1.0, paced: bool = False) -> float:
    """The fraction of all bytes that servers sum.

    ``rates``: the mean rate of the servers' links, as a multiple of the slowest worker's.
    ``paced``: connections do not decide what servers get of a worker's link.
    """
    moved = 2 * (workers - 1) / workers
    equal = workers / (servers * rates) + moved - 1
    level = min(1.0, moved / equal) if equal > 0 else 1.0
    return level if paced else min(level, 2 * servers / (workers + 2 * servers))


def busiest(workers: int, servers: int, fraction: float, rates: float = 1.0) -> float:
    """The time of the busiest link, if all bytes take 1 over a worker's link in one direction."""
    moved = 2 * (workers - 1) / workers
    of_worker = fraction + (1 - fraction) * moved
    return max(of_worker, workers * fraction / (servers * rates))


def routes_for(model: Model, fraction: float) -> tuple[Route, ...]:
    """Routes of all gradients of ``model``, of whose bytes ``fraction`` goes to servers."""
    largest_bytes = max(PAGE_BYTES, model.size_bytes // _WHOLE_OF_ALL)
    found = []
    served_bytes = passed_bytes = 0
    for parameter in model.parameters:
        size_bytes = parameter.size_bytes
        passed_bytes += size_bytes
        short_bytes = fraction * passed_bytes - served_bytes
        if size_bytes > largest_bytes:
            own_bytes = min(size_bytes, max(0, round(short_bytes / PAGE_BYTES)) * PAGE_BYTES)
        else:
            own_bytes = size_bytes if 2 * short_bytes >= size_bytes else 0
        served_bytes += own_bytes
        pieces = (Piece(own_bytes, SERVERS), Piece(size_bytes - own_bytes, MESH))
        found.append(Route(parameter.name, tuple(piece for piece in pieces if piece.size_bytes)))
    return tuple(found)


def mixed(job: Job, fraction: float | None = None, paced: bool = False) -> Job:
    """``job``, which has servers in its cluster, under a strategy of both transports.

    ``fraction``: of all bytes, to servers; None: the one at the top of this file. ``paced``: the
    mesh leaves servers their share of the link. Raises ``UserError`` if its gradients cannot go
    both ways, or if links are to be divided whose rate is not known.
    """
    if job.workers < 2:
        raise UserError("mixed: a job of one worker exchanges nothing")
    if job.strategy.reduce_dtype not in ("", FP16):
        raise UserError(f"mixed: servers do not sum gradients in {job.strategy.reduce_dtype}")
    rates = _rates(job)
    if fraction is None:
        fraction = fraction_of(job.workers, job.servers, rates, paced)
        if fraction >= 1:
            raise UserError(
                "mixed-paced: servers alone load these links least: use partitioned-ps, or mixed"
            )
    return with_routes(job, routes_for(job.model, fraction), fraction, paced)


def with_routes(
    job: Job,
    routes: tuple[Route, ...],
    fraction: float,
    paced: bool = False,
    owners: Owners | None = None,
) -> Job:
    """``job``, which has servers in its cluster, under a strategy with these ``routes``.

    ``fraction``: of all bytes, to servers. ``paced``: as in ``mixed``. ``owners``: of what goes
    over the mesh; None: equal ones. Raises ``UserError`` unless both transports carry something,
    and for ``paced`` a rate at which a step can end.
    """
    for way, where in ((SERVERS, "to servers"), (MESH, "over the mesh")):
        if not len(carried(job.model, routes, way)):
            raise UserError(f"mixed: nothing of this model would go {where}: it is too small")
    policy, partition_bytes = _policy(job, fraction)
    strategy = replace(
        job.strategy,
        runtime=MIXED,
        mesh=DEAR_PLANNED,
        routes=routes,
        buckets=_buckets(job, routes, fraction),
        bucket_bytes=0,
        partition_bytes=partition_bytes,
        numbers=(),
        owners=() if owners is None else owners.unequal,
        fixed="",
        shardable=True,  # what may not be sharded is not
        mesh_bps=_mesh_bps(job, routes, fraction) if paced else 0,
    )
    made = replace(job, strategy=strategy, policy=policy)
    made = replace(made, strategy=replace(strategy, keys=_keys(made)))
    return with_updates(made, job)


def _share_of_mesh(workers: int, fraction: float) -> float:
    """The part of what crosses a worker's link that goes over the mesh."""
    moved = (1 - fraction) * 2 * (workers - 1) / workers
    return moved / (fraction + moved)


def _mesh_bps(job: Job, routes: tuple[Route, ...], fraction: float) -> int:
    """The rate of a paced mesh. Raises ``UserError`` if links are not limited, or far too slow."""
    slowest_bps = _slowest_bps(job)
    if not slowest_bps:
        raise UserError("mixed-paced: no worker's link has a known rate, so none can be divided")
    mesh_bps = max(1, round(slowest_bps * _share_of_mesh(job.workers, fraction)))
    try:
        check_mesh_bps(job.model, routes, mesh_bps)
    except ValueError as error:
        raise UserError(f"mixed-paced: {error}") from None
    return mesh_bps


def _slowest_bps(job: Job) -> int:
    """The rate of the slowest worker's link; 0: none is limited."""
    return min((host.slower_bps for host in job.cluster.workers if host.slower_bps), default=0)


def _rates(job: Job) -> float:
    """The mean rate of servers' links over that of the slowest worker's.

    A link that was not limited counts like the slowest worker's.
    """
    slowest_bps = _slowest_bps(job)
    if not slowest_bps:
        return 1.0
    served_bps = [host.slower_bps or slowest_bps for host in job.cluster.servers]
    return sum(served_bps) / len(served_bps) / slowest_bps


def served_fraction(job: Job) -> float:
    """The part of all bytes that go to servers in a job of two transports."""
    both = [sum(bytes_of(job.model, job.strategy.routes, way)) for way in (SERVERS, MESH)]
    return both[0] / max(1, sum(both))


def why_useless(job: Job) -> str:
    """Why ``job``, of two transports, gains nothing over one of them; empty if it does."""
    workers, servers, rates = job.workers, job.servers, _rates(job)
    ours = busiest(workers, servers, served_fraction(job), rates)
    alone = {
        "an all-reduce": busiest(workers, servers, 0.0, rates),
        "servers alone": busiest(workers, servers, 1.0, rates),
    }
    best = min(alone, key=lambda name: alone[name])
    if ours < alone[best] * (1 - 1e-9):
        return ""
    return (
        f"with {workers} workers and {servers} server(s), {best} loads the links no more than a "
        "mix does"
    )


def _policy(job: Job, fraction: float) -> tuple[Policy, int]:
    """The policy of what goes to servers, and its partition size, which does not adapt to the link.

    While a job runs, what servers get of a link depends on what the mesh leaves them. A policy that
    followed it would make partitions and its window small, and connections with so little in flight
    lose against those of the mesh. So it is the size that the policy prefers for their planned
    share, and so much is in flight as that share carries while a byte waits behind the mesh's.
    ``fraction``: of all bytes, to servers.
    """
    share_bps = round(_slowest_bps(job) * (1 - _share_of_mesh(job.workers, fraction)))
    known, partition_bytes = job.policy or Policy(schedulers.DEFAULT), job.strategy.partition_bytes
    given, largest = dict(known.settings), schedulers.LARGEST_PARTITION
    given.pop(schedulers.PLANNED_FOR, None)  # workers agree anew on the order
    if job.strategy.runtime == MIXED:
        given.pop(schedulers.WINDOW_FLOOR, None)  # it was made for the fraction of that strategy
    if given.get(largest, schedulers.resolve(known.name, {})[0].get(largest, 0)):
        given.pop(schedulers.PARTITION, None)
        if share_bps:
            preferred_bytes = schedulers.preferred_partition_bytes(known.name, given, share_bps)
            if preferred_bytes is not None:
                given[schedulers.PARTITION] = preferred_bytes
        given[largest] = 0
    elif partition_bytes:
        given[schedulers.PARTITION] = partition_bytes
    settings, partition_bytes = schedulers.resolve(known.name, given)
    if settings.get(schedulers.WINDOW_FLOOR) == 0:
        carried_bytes = round(share_bps / 8e9 * _QUEUE_NS)
        settings[schedulers.WINDOW_FLOOR] = min(carried_bytes, settings[schedulers.WINDOW_MAX])
    return Policy(known.name, settings), partition_bytes


def _buckets(job: Job, routes: tuple[Route, ...], fraction: float) -> tuple[Bucket, ...]:
    """Buckets of what goes over the mesh, planned for its share of the links.

    Nothing is sharded if something is cut (``job/routes_file.py``), or if every worker has to
    update all of a parameter.
    """
    members = replace(job.strategy, runtime=DEAR_PLANNED, keys=(), owners=())
    cluster = Cluster(job.cluster.workers, costs=job.cluster.costs)
    ranks = Job(job.model, job.times, cluster, members)
    share = _share_of_mesh(job.workers, fraction)
    timing = _of_mesh(timing_of(ranks), routes, share, bool(job.strategy.reduce_dtype))
    planned = strategy_of_groups(timing, DEAR_PLANNED, best_groups(DEAR_PLANNED, timing))
    if job.strategy.shardable and not any(route.is_cut for route in routes):
        return planned.buckets
    return tuple(replace(bucket, sharded=False) for bucket in planned.buckets)


def _of_mesh(timing: Timing, routes: tuple[Route, ...], share: float, is_cast: bool) -> Timing:
    """The timing of what goes over the mesh, on ``share`` of the links."""
    parts: dict[str, list[Part]] = {}
    for part in parts_of(routes):
        if part.way == MESH:
            parts.setdefault(part.tensor, []).append(part)
    divisor = 2 if is_cast else 1
    found = [
        [
            Timed(part.name, max(1, part.size_bytes // divisor), each.ready_ns, 0)
            for part in parts.get(each.name, ())
        ]
        for each in timing.parameters
    ]
    rates_bps = [max(1, round(rate * share)) for rate in timing.link.rates_bps]
    return replace(timing.replaced(found), link=Link.of_ranks(rates_bps, MESSAGE_NS))


def _keys(job: Job) -> tuple[Keys, ...]:
    """Servers whose loads are even, for what shares no buffers."""
    if job.servers == 1:
        return ()
    alone = served(job).job
    largest_first = np.argsort(-partitions_of_job(alone).size_bytes, kind="stable").tolist()
    placed = placed_by_load(alone, largest_first)
    sizes = dict(zip(alone.model.names, alone.model.sizes_bytes, strict=True))
    return tuple(each for each in placed.strategy.keys if sizes[each.tensor] > DEFAULT_FUSION_BYTES)
