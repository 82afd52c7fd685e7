"""Random routings, for comparison: as AutoDist draws the candidates of its search.

AutoDist's AutoStrategy (its issue 26) draws, variable by variable, a synchroniser, servers and
partitions, and lets a ranker choose. Here a draw decides for every gradient as a whole whether it
goes to servers or over the mesh, with a chance that is drawn once per routing, and equal owners.
With ``constraints``, the busiest link must not be busier than under the better strategy of one
transport, owners fit the links, and large gradients may be cut: what a person would ask for who
knows the links.
"""

from __future__ import annotations

import random

import numpy as np

from byteprophet.job import Job
from byteprophet.job.owners import Owners
from byteprophet.strategy.search.engine import Routing
from byteprophet.strategy.search.units import Booleans, Units
from byteprophet.strategy.shares import owners_beside

_DRAWS = 1000


def sampled_routings(
    job: Job, units: Units, count: int, *, seed: int, constraints: bool = False
) -> list[Routing]:
    """``count`` different routings for ``job``, whose cluster has servers; fewer, if few are found.

    Both ways carry something in each of them, so that they are strategies of two transports.
    """
    lot = random.Random(seed)
    found: dict[tuple[bytes, tuple[int, ...]], Routing] = {}
    for _ in range(_DRAWS * count):
        if len(found) == count:
            break
        routing = _drawn(job, units, lot, constraints)
        if routing.served.any() and not routing.served.all():
            found.setdefault(routing.key, routing)
    return list(found.values())


def _drawn(job: Job, units: Units, lot: random.Random, constraints: bool) -> Routing:
    chance = lot.random()
    worker_bps = [host.slower_bps for host in job.cluster.workers]
    drawn = np.array([lot.random() < chance for _ in range(len(units))])
    if not constraints:
        return Routing(_whole(units, drawn), Owners.equal(job.workers))
    routing = Routing(drawn, owners_beside(worker_bps, units.fraction(drawn)))
    none = np.zeros(len(units), np.bool_)
    pure = min(
        busiest_ns(job, units, Routing(none, owners_beside(worker_bps, 0.0))),
        busiest_ns(job, units, Routing(~none, routing.owners)),
    )
    if busiest_ns(job, units, routing) > pure:
        return Routing(none, routing.owners)  # it is left out
    return routing


def _whole(units: Units, served: Booleans) -> Booleans:
    """``served``, with all pieces of a gradient on the side that has most of it, (U,)."""
    found: Booleans = served.copy()
    for unit, members in enumerate(units.members):
        if len(members) == 1:
            same = [other for other, each in enumerate(units.members) if each == members]
            size = units.size_bytes[same]
            found[unit] = 2 * size[served[same]].sum() > size.sum()
    return found


def busiest_ns(job: Job, units: Units, routing: Routing) -> float:
    """How long the bytes of an iteration keep the busiest link busy, in ns.

    Servers are loaded in proportion to the rates of their links. 0: no link is limited.
    """
    fraction, size_bytes = units.fraction(routing.served), float(units.size_bytes.sum())
    times = [0.0]
    for host, share in zip(job.cluster.workers, routing.owners.shares, strict=True):
        moved = fraction + (1 - fraction) * (1 + (job.workers - 2) * float(share))
        if host.slower_bps:
            times.append(moved * size_bytes * 8e9 / host.slower_bps)
    server_bps = [host.slower_bps for host in job.cluster.servers]
    if server_bps and all(server_bps):
        times.append(job.workers * fraction * size_bytes * 8e9 / sum(server_bps))
    return max(times)
