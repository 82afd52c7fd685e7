"""The graph of a job with two transports: servers, and the mesh of the ranks.

    iteration ─► forward, layer by layer ─► backward ─► gradients, or pieces of them
                   ▲                                      │ to servers       │ in buckets
                 update ◄── answers ◄── sums ◄── pushes ◄─┘                  │
                   ▲── averages, or all-gathers ◄── reduce-scatters ◄────────┘

- Workers compute as in either kind of jobs. An update waits for all pieces of its gradient, and, if
  one of them goes over the mesh, for ``step()``.
- Both transports share the links of the workers. Every flow of either one is a connection of its
  own, and a link is divided among connections fairly, as TCP does. So what a transport gets depends
  on how many of its connections have something to send.
- What hosts add to the time of a byte on the mesh (``host_ns_per_byte``) keeps only the mesh from
  using the link, and not the servers' messages: frames cross a link of the mesh's own first, which
  is as fast as the mesh alone would be.
- If the strategy paces the mesh, it is paced all the time here, and in real jobs only while servers
  have gradients.

With nothing to servers, or nothing over the mesh, operations are those of ``mesh_graph.py`` or of
``ps_graph.py``, in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from byteprophet.errors import UserError
from byteprophet.graph.builder import GraphBuilder
from byteprophet.graph.mesh_transfers import OF_THE_MESH, MeshTransfers, connected
from byteprophet.graph.model import Graph, Int64Array
from byteprophet.graph.ps_transfers import PsTransfers
from byteprophet.graph.workers import Workers
from byteprophet.job import Job
from byteprophet.job.agreed_order import agreed_policy_of
from byteprophet.job.as_executed import as_executed
from byteprophet.job.transports import Carried, meshed, served


@dataclass(frozen=True)
class MixedGraph:
    """A job's graph, and arrays with the numbers of its operations.

    W is the number of workers, I of iterations, P of parameters.

    Attributes:
        graph: the graph.
        begin: the begin of iterations, shape (W, I).
        end: the end of a worker's computation in an iteration, (W, I).
        forward: the forward of layers, (W, I, P).
        update: the updates, (W, I, P).
    """

    graph: Graph
    begin: Int64Array
    end: Int64Array
    forward: Int64Array
    update: Int64Array


def build(job: Job) -> MixedGraph:
    """Build the graph of ``job``. Raises ``UserError`` if the job is invalid or too large."""
    return _Build(as_executed(job)).run()


class _Build:
    """Builds one graph. A transport that carries nothing is None."""

    def __init__(self, job: Job) -> None:
        self.job = job
        own, others = served(job), meshed(job)
        buckets = [f"bucket {number}" for number in range(len(job.strategy.buckets))]
        tensors = own.job.model.names
        self.graph = GraphBuilder((*job.model.names, *tensors, *buckets))
        self.workers = Workers(job, job.cluster.workers, self.graph)
        self.parts = own.parameters
        self.servers: PsTransfers | None = None
        self.mesh: MeshTransfers | None = None
        if tensors:
            sent = replace(own.job, policy=agreed_policy_of(job, own))
            self.servers = PsTransfers(
                sent, self.graph, self.workers, own.parameters, len(job.model)
            )
            if self.servers.stock:
                raise UserError("stock has BytePS' own optimizer, which knows of no mesh")
        if others.parameters:
            first_name = len(job.model) + len(tensors)
            self.mesh = self._make_mesh(others, first_name)
        self.over_mesh = np.unique(np.array(others.parameters, np.int64).ravel())
        shape = (job.workers, job.iterations)
        self.blocks = {
            **{name: np.zeros(shape, np.int64) for name in ("begin", "end")},
            **{
                name: np.zeros((*shape, len(job.model)), np.int64) for name in ("forward", "update")
            },
        }

    def _make_mesh(self, carried: Carried, first_name: int) -> MeshTransfers:
        host_ns = carried.job.cluster.costs.host_ns_per_byte
        sends: list[tuple[int, ...]] = [(up,) for up in self.workers.up]
        receives: list[tuple[int, ...]] = [(down,) for down in self.workers.down]
        if host_ns:
            sends, receives = [], []
            for rank, host in enumerate(carried.job.cluster.workers):
                slow = host.slowed_by(host_ns)
                name, burst_bytes = f"worker {rank}", host.burst_bytes
                up = self.graph.link(f"{name} up{OF_THE_MESH}", slow.up_bps, burst_bytes)
                down = self.graph.link(f"{name} down{OF_THE_MESH}", slow.down_bps, burst_bytes)
                sends.append((up, self.workers.up[rank]))
                receives.append((self.workers.down[rank], down))
        return MeshTransfers(
            carried.job,
            self.graph,
            connected(self.graph, sends, receives, self._pace_bps()),
            first_name,
            [place for (place,) in carried.parameters],
        )

    def _pace_bps(self) -> int:
        """The most that one connection of the mesh carries; 0: no limit."""
        return self.job.strategy.mesh_bps // max(1, self.job.workers - 1)

    def run(self) -> MixedGraph:
        """Build the graph, one iteration after the other."""
        for iteration in range(self.job.iterations):
            steps = [self._compute(worker, iteration) for worker in range(self.job.workers)]
            if self.mesh is not None:
                self.mesh.average(iteration)
                self.mesh.begin_updates(iteration)
            for worker, step in enumerate(steps):
                self._update(worker, iteration, step)
            if self.mesh is not None:
                self.mesh.end_updates(iteration)
        return MixedGraph(self.graph.freeze(), **self.blocks)

    def _compute(self, worker: int, iteration: int) -> int:
        """Add forward, backward, and what begins with a gradient that is ready.

        Returns the operation at whose end ``step()`` is called.
        """
        graph, blocks, at = self.graph, self.blocks, (worker, iteration)
        computed = self.workers.compute(worker, iteration)
        if self.servers is not None:
            graph.mark_iteration(computed.begin, self.servers.gates[worker])
        if iteration:
            before = (worker, iteration - 1)
            graph.depend_each(blocks["end"][before], computed.begin)
            graph.depend_each(blocks["update"][before], computed.forward)
            if self.mesh is not None:
                self.mesh.before_forward(worker, iteration, computed.forward)
        if self.mesh is not None:
            self.mesh.start(worker, iteration, computed.ready)
        if self.servers is not None:
            # Gradients are ready one after the other: that of the largest number is the last one.
            last = np.array([computed.ready[list(places)].max() for places in self.parts])
            self.servers.push(worker, iteration, last)
        blocks["begin"][at], blocks["end"][at] = computed.begin, computed.end
        blocks["forward"][at] = computed.forward
        return computed.step

    def _update(self, worker: int, iteration: int, step: int) -> None:
        """Add what comes from servers to a worker, and its updates."""
        if self.servers is not None:
            self.servers.answer(worker, iteration)
        update = self.workers.update(worker, iteration)
        arrived: list[Int64Array] = []
        if self.mesh is not None:
            self.graph.depend_each(step, update[self.over_mesh])
            arrived.append(self.mesh.complete(worker, iteration, update))
        if self.servers is not None:
            self.servers.complete(worker, iteration, update)
            arrived.append(self.servers.blocks["answer"][worker, iteration])
        if self.job.times.waits_for_all:
            waiting = np.append(update, self.blocks["end"][worker, iteration])
            self.workers.wait_for_all(worker, iteration, np.concatenate(arrived), waiting)
        self.blocks["update"][worker, iteration] = update
