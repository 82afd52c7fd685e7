"""Who sums how much if workers and servers have any links, and the bound of all such strategies.

Every byte of the gradients has one place where it is summed: a worker, which owns it, or a server.
Let P workers have links of rates b, and servers links of rates c; if directions differ, the slower
one counts. A worker that owns the share s of all bytes sends, and receives, 1 + (P - 2) s of them:
its own part goes to the owners, and its sums to all others. A server that sums the share s sends
and receives P s. So with shares that add up to 1, the busiest link takes at least T for one byte,
where T is the least number with

    sum over workers of (b T - 1) / (P - 2)  +  sum over servers of c T / P  >=  1,   b T >= 1

or, of two workers, T = 1 / min b, whatever the shares are. Whatever order transfers have, and
however shares differ from gradient to gradient: D bytes take T D, because their mean shares are
shares, too. So no iteration is shorter than T D.

Ranks need not be in step, so one slow direction bounds an iteration by its bytes alone, and not
by when they are ready (``bound.py``). The bound of one link (prophet/bound.h) holds for what each
pair of workers gives each other, and in each direction for all links together. For the latter, the
first sum alone decides, which is

    T = 2 (P - 1) / (sum over workers of b  +  (P - 2) / P  sum over servers of c)

``level_shares`` has the most even loads that reach T: there is one level t such that all links are
busy for t, but those of workers whose own part alone takes longer, which own nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from byteprophet.bound import Ranks, passed_ns, there_and_back_ns, together_ns
from byteprophet.errors import UserError
from byteprophet.job import Host, Job
from byteprophet.job.as_executed import as_executed
from byteprophet.job.owners import Owners
from byteprophet.strategy.mixed import routes_for, with_routes

_FINE = 1 << 16
"""Weights are rounded to this sum."""
_HALVINGS = 100


def busiest_ns_per_byte(worker_bps: Sequence[int], server_bps: Sequence[int]) -> float:
    """T: the least time of one byte on the busiest link, in ns, over all shares.

    Rates are in bits per second; 0: not limited.
    """
    if len(worker_bps) < 2:
        return 0.0
    own_part_ns = max(8e9 / rate if rate else 0.0 for rate in worker_bps)
    return max(own_part_ns, _shared_ns_per_byte(worker_bps, server_bps))


def _shared_ns_per_byte(worker_bps: Sequence[int], server_bps: Sequence[int]) -> float:
    """T without the condition that a worker sends its own part: what all links take together."""
    workers = len(worker_bps)
    if workers < 2 or not all(worker_bps) or not all(server_bps):
        return 0.0  # alone, nothing is sent, and who is not limited may sum everything
    carried_bps = sum(worker_bps) + sum(server_bps) * (workers - 2) / workers
    return 2 * (workers - 1) * 8e9 / carried_bps


def level_shares(
    worker_bps: Sequence[int], server_bps: Sequence[int]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The shares of the workers and of the servers; together they add up to 1.

    Rates as above. Two workers gain nothing from servers, and own equally much.
    """
    workers, servers = len(worker_bps), len(server_bps)
    unlimited = [int(not rate) for rate in (*worker_bps, *server_bps)]
    if workers <= 2:
        return (1 / workers,) * workers, (0.0,) * servers
    if any(unlimited):
        found = [each / sum(unlimited) for each in unlimited]
        return tuple(found[:workers]), tuple(found[workers:])

    def caps(level: float) -> list[float]:
        of_workers = (max(0.0, (rate * level - 1) / (workers - 2)) for rate in worker_bps)
        return [*of_workers, *(rate * level / workers for rate in server_bps)]

    # At twice the time of a worker's own part, it may own 1 / (P - 2) or more, all together all.
    level = _level(caps, 2 / min(worker_bps))
    whole = sum(caps(level))
    found = [each / whole for each in caps(level)]
    return tuple(found[:workers]), tuple(found[workers:])


def owners_beside(worker_bps: Sequence[int], fraction: float) -> Owners:
    """The owners of what goes over the mesh whose links are loaded most evenly.

    ``fraction``: of all bytes, to servers. It crosses each worker's link once, as the worker's own
    part of the rest does.
    """
    ranks = len(worker_bps)
    if ranks <= 2 or fraction >= 1 or len(set(worker_bps)) == 1:
        return Owners.equal(ranks)
    if not all(worker_bps):
        return Owners.of([int(not rate) for rate in worker_bps], ranks)
    moved = (ranks - 2) * (1 - fraction)

    def caps(level: float) -> list[float]:
        return [max(0.0, (rate * level - 1) / moved) for rate in worker_bps]

    level = _level(caps, (1 + moved) / min(worker_bps))
    return Owners.of([round(_FINE * each) for each in caps(level)], ranks)


def _level(caps: Callable[[float], list[float]], most: float) -> float:
    """The level at which ``caps`` add up to 1; at ``most``, they do or are more."""
    low, high = 0.0, most
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if math.fsum(caps(middle)) < 1 else (low, middle)
    return high


def bound_of_all_ns(job: Job, servers: Sequence[Host] = ()) -> int:
    """No strategy that sums every byte in one place makes an iteration of ``job`` shorter, in ns.

    ``servers``: those that a strategy may use. The job's own strategy counts only for how it
    computes. Times are the medians of the recorded iterations.
    """
    job = as_executed(job)
    ranks = Ranks.of(job)
    worker_bps = [host.slower_bps for host in job.cluster.workers]
    given_bytes = job.wire_bytes if job.workers > 1 else [0] * len(job.model)
    bounds_ns = [there_and_back_ns(given_bytes, ranks)]
    busiest_ns = busiest_ns_per_byte(worker_bps, [host.slower_bps for host in servers])
    if busiest_ns:
        bounds_ns.append(passed_ns(job.wire_bytes, math.ceil(8e9 / busiest_ns)))
    for rates_bps, of_servers_bps in (
        (ranks.up_bps, [host.up_bps for host in servers]),
        (ranks.down_bps, [host.down_bps for host in servers]),
    ):
        shared_ns = _shared_ns_per_byte(rates_bps, of_servers_bps)
        if shared_ns:
            bounds_ns.append(together_ns(job.wire_bytes, ranks, math.ceil(8e9 / shared_ns)))
    return max(bounds_ns) // job.strategy.accumulation


def shared(job: Job) -> Job:
    """``job``, which has servers in its cluster, with the shares that load all links evenly.

    Servers sum their part of all bytes, as under ``mixed``, and the workers own the rest in their
    shares. Raises ``UserError`` if servers, or workers, would have nothing to sum.
    """
    worker_bps = [host.slower_bps for host in job.cluster.workers]
    _, of_servers = level_shares(worker_bps, [host.slower_bps for host in job.cluster.servers])
    fraction = sum(of_servers)
    if fraction == 0:
        raise UserError(
            "shares: these links gain nothing from servers: use owners, in a job without servers"
        )
    if fraction > 1 - 1e-9:
        raise UserError("shares: servers alone load these links least: use partitioned-ps")
    owners = owners_beside(worker_bps, fraction)
    return with_routes(job, routes_for(job.model, fraction), fraction, owners=owners)
