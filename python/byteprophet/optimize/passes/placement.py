"""Which server sums which partitions of which gradients.

BytePS hashes keys. With few large tensors, with servers of unequal links, and with three or eleven
servers (``job/partitions.py``), some servers then have more to do than others, and a push ends when
its server has it. The starts balance the load by bytes, in proportion to the rates of the servers'
links: as long tasks are given to machines, the largest partition first (LPT: Graham, "Bounds on
multiprocessing timing anomalies", 1969), or in forward order, so that also those that are needed
first are balanced. The moves then change the tensors on the critical path: they move one to another
server, spread its partitions over all servers, or exchange two tensors' servers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from byteprophet.job import Job
from byteprophet.job.partitions import Partitions, partitions_of_job
from byteprophet.job.strategy import Keys
from byteprophet.optimize.keys import may_change_keys, places_on_path, with_keys
from byteprophet.optimize.moves import Effect, Hints, Move

_MOST_TENSORS = 8  # on the critical path, for which moves are offered
_MOST_EXCHANGES = 4  # of each of them


class Placement:
    """Offers balanced placements as starts, then changes of single tensors."""

    name = "placement"
    effect = Effect.EXACT
    why = "A server that has more to sum than its link carries holds up all workers."

    def starts(self, job: Job) -> Iterator[Move]:
        """Balanced by bytes: the largest partition first, and in forward order."""
        if not _can_place(job):
            return
        sizes_bytes = partitions_of_job(job).size_bytes
        largest_first = np.argsort(-sizes_bytes, kind="stable").tolist()
        in_order = range(len(sizes_bytes))
        for what, order in (("largest first", largest_first), ("in forward order", in_order)):
            yield Move(f"servers balanced by bytes, {what}", placed_by_load(job, order))

    def moves(self, job: Job, hints: Hints) -> Iterator[Move]:
        """For each tensor on the critical path: other servers, all servers, another's servers."""
        if not _can_place(job):
            return
        parts, rates = partitions_of_job(job), rates_of(job)
        for place in places_on_path(job, hints)[:_MOST_TENSORS]:
            name = job.model.names[place]
            first, last = parts.first[place : place + 2].tolist()
            now = tuple(parts.server[first:last].tolist())
            for server in range(job.servers):
                if set(now) != {server}:
                    yield Move(f"{name} on server {server}", _with_servers(job, name, (server,)))
            if last - first > 1:
                sizes = parts.size_bytes[first:last].tolist()
                spread = tuple(balanced(sizes, rates, range(len(sizes))))
                if spread != now:
                    yield Move(f"{name} on all servers", _with_servers(job, name, spread))
                for part, server in _single_moves(now, job.servers):
                    servers = (*now[:part], server, *now[part + 1 :])
                    what = f"partition {part} of {name} on server {server}"
                    yield Move(what, _with_servers(job, name, servers))
            for other in _alike(job, parts, place)[:_MOST_EXCHANGES]:
                theirs = tuple(parts.server[slice(*parts.first[other : other + 2])].tolist())
                changed = _with_servers(job, name, theirs)
                other_name = job.model.names[other]
                yield Move(
                    f"{name} and {other_name} exchange servers",
                    _with_servers(changed, other_name, now),
                )


def placed_by_load(job: Job, order: Sequence[int]) -> Job:
    """``job`` with its partitions placed, in ``order``, each where it would be summed first."""
    parts = partitions_of_job(job)
    return _placed(job, parts, balanced(parts.size_bytes.tolist(), rates_of(job), order))


def rates_of(job: Job) -> list[float]:
    """How fast each server's link is, relative to others.

    One that is not limited is as fast as the links of all workers together, or as the fastest
    server.
    """
    of_servers = [host.slower_bps for host in job.cluster.servers]
    of_workers = [host.slower_bps for host in job.cluster.workers]
    most_bps = sum(of_workers) if all(of_workers) else max(of_servers)
    return [float(min(rate or most_bps, most_bps) or 1) for rate in of_servers]


def balanced(sizes_bytes: Sequence[int], rates: Sequence[float], order: Sequence[int]) -> list[int]:
    """A server for each partition: in ``order``, the one that would have it first."""
    servers = [0] * len(sizes_bytes)
    busy_until = [0.0] * len(rates)
    for place in order:
        ends = [
            until + sizes_bytes[place] / rate for until, rate in zip(busy_until, rates, strict=True)
        ]
        best = ends.index(min(ends))
        busy_until[best] = ends[best]
        servers[place] = best
    return servers


def _can_place(job: Job) -> bool:
    return job.servers > 1 and may_change_keys(job)


def _placed(job: Job, parts: Partitions, servers: Sequence[int]) -> Job:
    changed = {
        name: tuple(servers[parts.first[place] : parts.first[place + 1]])
        for place, name in enumerate(job.model.names)
    }
    return with_keys(job, lambda keys: replace(keys, servers=changed[keys.tensor]))


def _with_servers(job: Job, name: str, servers: tuple[int, ...]) -> Job:
    def change(keys: Keys) -> Keys:
        return replace(keys, servers=servers) if keys.tensor == name else keys

    return with_keys(job, change)


def _single_moves(now: Sequence[int], servers: int) -> Iterator[tuple[int, int]]:
    """For each server, its last partition, with each other server: (partition, server)."""
    for server in sorted(set(now)):
        part = len(now) - 1 - now[::-1].index(server)
        yield from ((part, other) for other in range(servers) if other != server)


def _alike(job: Job, parts: Partitions, place: int) -> list[int]:
    """Tensors with other servers, those of the most similar size first."""
    size_bytes = job.model.sizes_bytes
    mine = parts.server[slice(*parts.first[place : place + 2])].tolist()
    others = [
        other
        for other in range(len(size_bytes))
        if parts.server[slice(*parts.first[other : other + 2])].tolist() != mine
    ]
    return sorted(others, key=lambda other: abs(size_bytes[other] - size_bytes[place]))
