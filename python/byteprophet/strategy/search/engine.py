"""How long an iteration takes under any routes and owners, thousands of times.

One graph stands for all routings. Of every unit it has the flows of both ways: from each worker to
each other one and back, and to a server and back. A routing says which of them carry bytes; the
others take no time. So between two routings, four columns change (device, bytes, duration,
latency), and the structure stays: a replay of a few thousand operations is all that is left to do.

The graph is one iteration, from the start of the backward pass to the end of the next forward
pass, because the forward pass needs all gradients: nothing is in flight when backward begins.
Connections carry what the forward pass needs first, and share links max-min fairly, as those of TCP
do: that is what servers' part of a worker's link is decided by. Updates take their recorded time
per unit, and a server sums as fast as one of its threads.

*Threads*: ``many`` replays routings on a pool. Threads share the engine's arrays, which are
read-only after the constructor, and each makes columns of its own. The core holds no lock of
Python's while it replays. Results stand in the order of the routings, so that they do not depend on
the threads. ``many`` itself is called by one thread at a time.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from byteprophet.graph import GraphBuilder
from byteprophet.graph.mesh_transfers import FRAME_BYTES
from byteprophet.graph.model import NONE, Graph
from byteprophet.job import Costs, Job
from byteprophet.job.as_executed import as_executed
from byteprophet.job.owners import Owners
from byteprophet.job.times import Int64Array
from byteprophet.replay import replay
from byteprophet.strategy.search.units import Booleans, Units

_UNLIMITED_BPS = 1 << 50


@dataclass(frozen=True, eq=False)
class Routing:
    """``served``: the units that go to servers, shape (U,). ``owners``: of all others."""

    served: Booleans
    owners: Owners

    @property
    def key(self) -> tuple[bytes, tuple[int, ...]]:
        """Equal for equal routings."""
        return self.served.tobytes(), self.owners.weights


class RouteEngine:
    """Replays an iteration of ``job``, whose cluster has the servers, under routings of ``units``.

    W workers, S servers, U units. ``replays`` counts what ``many`` had to replay.
    """

    def __init__(self, job: Job, units: Units) -> None:
        job = as_executed(job)
        self.units = units
        self.replays = 0
        self._known: dict[tuple[bytes, tuple[int, ...]], int] = {}
        self._workers, self._servers = job.workers, job.servers
        self._costs = job.cluster.costs
        self._mesh_costs = job.cluster.mesh_costs or job.cluster.costs
        self._divisor = 2 if job.strategy.reduce_dtype else 1
        self._rates = np.array(
            [host.slower_bps or _UNLIMITED_BPS for host in job.cluster.servers], np.float64
        )
        self._build(job)

    def iteration_ns(self, routing: Routing) -> int:
        """The time of an iteration of the slowest worker under ``routing``."""
        return self.many([routing])[0]

    def many(self, routings: Sequence[Routing]) -> list[int]:
        """The times of ``routings``, in their order."""
        new = {routing.key: routing for routing in routings if routing.key not in self._known}
        self.replays += len(new)
        threads = min(len(new), len(os.sched_getaffinity(0)))
        if threads > 1:
            with ThreadPoolExecutor(threads, "replay") as pool:
                times_ns = list(pool.map(self._replayed_ns, new.values()))
        else:
            times_ns = [self._replayed_ns(routing) for routing in new.values()]
        self._known.update(zip(new, times_ns, strict=True))
        return [self._known[routing.key] for routing in routings]

    def _replayed_ns(self, routing: Routing) -> int:
        return int(replay(self.graph(routing)).end_ns[self._last].max())

    def graph(self, routing: Routing) -> Graph:
        """The graph of an iteration under ``routing``."""
        sizes = self.units.size_bytes // self._divisor
        meshed = np.where(routing.served, 0, sizes)
        shards = np.array([routing.owners.sizes(size) for size in meshed.tolist()], np.int64)
        served = np.where(routing.served, sizes, 0)
        columns = {
            name: getattr(self._graph, name).copy()
            for name in ("size_bytes", "device", "duration_ns", "latency_ns")
        }
        put = partial(self._put, columns)
        senders, receivers = self._pairs
        put(self._reduce, shards[:, receivers], self._between[senders, receivers], self._mesh_costs)
        put(self._gather, shards[:, senders], self._between[senders, receivers], self._mesh_costs)
        if self._servers:
            server = self._placed(served)
            pushed = np.broadcast_to(served[:, None], self._push.shape)
            put(self._push, pushed, self._to_server[:, server].T, self._costs)
            put(self._answer, pushed, self._from_server[:, server].T, self._costs)
            columns["duration_ns"][self._sums] = np.rint(served * self._sum_ns_per_byte)
        return replace(self._graph, **columns)

    def _put(
        self,
        columns: dict[str, Int64Array],
        flows: Int64Array,
        size_bytes: Int64Array,
        devices: Int64Array,
        costs: Costs,
    ) -> None:
        """Let ``flows`` carry so much over ``devices``; those without bytes take no time."""
        moves = size_bytes > 0
        frames = -(-size_bytes // FRAME_BYTES)
        columns["size_bytes"][flows] = size_bytes
        columns["device"][flows] = np.where(moves, devices, NONE)
        columns["duration_ns"][flows] = frames * costs.message_cost_ns
        columns["latency_ns"][flows] = moves * costs.delay_ns

    def _placed(self, served: Int64Array) -> Int64Array:
        """The server of each unit, (U,): in forward order, the one that would have it first."""
        if self._servers == 1:
            return np.zeros(len(served), np.int64)
        busy = np.zeros(self._servers)
        found = np.zeros(len(served), np.int64)
        for unit in np.flatnonzero(served).tolist():
            ends = busy + served[unit] / self._rates
            best = int(ends.argmin())
            busy[best], found[unit] = ends[best], best
        return found

    def _build(self, job: Job) -> None:
        """Make the graph of all flows, none of which carries anything yet."""
        graph = GraphBuilder()
        workers, servers = range(job.workers), range(job.servers)
        host_ns = self._mesh_costs.host_ns_per_byte
        mesh_hosts = [host.slowed_by(host_ns) for host in job.cluster.workers]
        ups = [graph.link(f"worker {w} up", mesh_hosts[w].up_bps or None) for w in workers]
        downs = [graph.link(f"worker {w} down", mesh_hosts[w].down_bps or None) for w in workers]
        server_hosts = job.cluster.servers
        server_ups = [graph.link(f"server {s} up", server_hosts[s].up_bps or None) for s in servers]
        server_downs = [
            graph.link(f"server {s} down", server_hosts[s].down_bps or None) for s in servers
        ]

        def connections(first: list[int], last: list[int], what: str) -> Int64Array:
            return np.array(
                [
                    [
                        graph.connection(f"{what} {a} {b}", (up, down), by_priority=True)
                        for b, down in enumerate(last)
                    ]
                    for a, up in enumerate(first)
                ],
                np.int64,
            ).reshape(len(first), len(last))

        self._between = connections(ups, downs, "workers")
        self._to_server = connections(ups, server_downs, "pushes of worker and server")
        self._from_server = connections(server_ups, downs, "answers of server and worker").T
        self._sum_ns_per_byte = job.workers * self._costs.sum_ns_per_byte
        self._pairs = tuple(
            np.array(each, np.int64)
            for each in zip(*((s, r) for s in workers for r in workers if s != r), strict=True)
        ) or (np.zeros(0, np.int64), np.zeros(0, np.int64))
        ready, arrived, last = [], [], []
        for worker in workers:
            own = _Computation(graph, job, worker, self.units)
            ready.append(own.ready)
            arrived.append(own.arrived)
            last.append(own.last)
        self._last = np.array(last)
        self._flows(graph, np.array(ready), np.array(arrived))
        self._graph = graph.freeze()

    def _flows(self, graph: GraphBuilder, ready: Int64Array, arrived: Int64Array) -> None:
        """Add the flows of all units; ``ready``, ``arrived``: operations, shape (W, U)."""
        units = len(self.units)
        senders, receivers = self._pairs
        urgent = -np.arange(units)[:, None]
        pairs = (units, len(senders))
        self._reduce = graph.add_block(pairs, priority=urgent)
        averaged = graph.add_block(ready.shape)
        self._gather = graph.add_block(pairs, priority=urgent)
        graph.depend_each(ready, averaged)
        graph.depend_each(ready[senders].T, self._reduce)
        graph.depend_each(self._reduce, averaged[receivers].T)
        graph.depend_each(averaged[senders].T, self._gather)
        graph.depend_each(averaged, arrived)
        graph.depend_each(self._gather, arrived[receivers].T)
        if not self._servers:
            return
        each = (units, self._workers)
        self._push = graph.add_block(each, priority=urgent)
        self._sums = graph.add_block(units)
        self._answer = graph.add_block(each, priority=urgent)
        graph.depend_each(ready.T, self._push)
        graph.depend_each(self._push, self._sums[:, None])
        graph.depend_each(self._sums[:, None], self._answer)
        graph.depend_each(self._answer, arrived.T)


class _Computation:
    """One worker's passes, at the medians of its times.

    ``ready``: the end of each unit's backward pass, ``arrived``: when its parameters are updated,
    both (U,). ``last``: the end of the forward pass.
    """

    def __init__(self, graph: GraphBuilder, job: Job, worker: int, units: Units) -> None:
        forward_ns, ready_ns, backward_ns, update_ns = job.times.medians(worker)
        device = graph.serial(f"worker {worker} computes")
        unit_ready_ns = np.array([ready_ns[list(own)].max() for own in units.members])
        order = np.lexsort((-np.arange(len(units)), unit_ready_ns))
        ends_ns = np.append(unit_ready_ns[order], max(backward_ns, int(unit_ready_ns.max())))
        backward = graph.add_block(len(ends_ns), np.diff(ends_ns, prepend=0), device=device)
        graph.chain(backward)
        self.ready = np.empty(len(units), np.int64)
        self.ready[order] = backward[:-1]
        size_bytes = np.array(job.model.sizes_bytes)
        updates_ns = [
            int((update_ns[list(own)] * min(1.0, size / size_bytes[list(own)].sum())).sum())
            for own, size in zip(units.members, units.size_bytes.tolist(), strict=True)
        ]
        self.arrived = graph.add_block(len(units), updates_ns)
        # Pieces of one gradient are needed at one time, and so are gradients of one unit.
        first = [unit for unit in range(len(units)) if unit == 0 or
                 units.members[unit] != units.members[unit - 1]]  # fmt: skip
        segment_ns = [int(forward_ns[list(units.members[unit])].sum()) for unit in first]
        forward = graph.add_block(len(first), segment_ns, device=device)
        graph.chain(np.concatenate([backward[-1:], forward]))
        segment = np.searchsorted(first, np.arange(len(units)), side="right") - 1
        graph.depend_each(self.arrived, forward[segment])
        self.last = int(forward[-1])
