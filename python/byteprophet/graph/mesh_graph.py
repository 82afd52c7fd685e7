"""The graph of a job whose ranks reduce-scatter and all-gather among themselves, by priority.

    iteration ─► forward, layer by layer ─► backward ─► gradients of a bucket are ready
                   ▲                                          │ every rank sends each other rank
                 update ◄── all-gather ◄── shards averaged ◄──┘ that one's shard
                   (of a sharded bucket: update the shard ─► all-gather ─► forward)

- What is exchanged, and in which order, ``mesh_transfers.py`` says.
- A layer of the next forward pass waits only for its own parameters.
- If the script waits for all averages before it updates, so do all updates, and the end of the
  iteration.
- Where ranks share cores, computing, updates and messages slow each other down (``cores.py``).
- If a bucket's averages are delayed by k steps (``job/staleness.py``), the update of an iteration
  waits for the all-gather of k iterations before, and operations have the priority of the iteration
  in which they are needed. The first k updates wait for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from byteprophet.graph.builder import GraphBuilder
from byteprophet.graph.mesh_transfers import FRAME_BYTES, MeshTransfers, connected
from byteprophet.graph.model import Graph, Int64Array
from byteprophet.graph.workers import Workers
from byteprophet.job import Job
from byteprophet.job.as_executed import as_executed


@dataclass(frozen=True)
class MeshGraph:
    """A job's graph, and arrays with the numbers of its operations.

    W is the number of ranks, I of iterations, P of parameters, B of buckets. Behind those of the
    strategy come the buckets of compressed gradients.

    Attributes:
        graph: the graph.
        begin: the begin of iterations, shape (W, I).
        end: the end of a rank's computation in an iteration, (W, I).
        forward: the forward of layers, (W, I, P).
        update: the updates, (W, I, P).
        start: the start of reduce-scatters, when the bucket is complete on this rank, (W, I, B).
        averaged: the end of reduce-scatters, when this rank's shard is averaged, (W, I, B).
        gathered: the end of all-gathers, when this rank has all shards, (W, I, B).
    """

    graph: Graph
    begin: Int64Array
    end: Int64Array
    forward: Int64Array
    update: Int64Array
    start: Int64Array
    averaged: Int64Array
    gathered: Int64Array


def build(job: Job, frame_bytes: int = FRAME_BYTES) -> MeshGraph:
    """Build the graph of ``job``, which has buckets, and whose ranks send frames of this size."""
    return _Build(as_executed(job), frame_bytes).run()


class _Build:
    """Builds one graph."""

    def __init__(self, job: Job, frame_bytes: int) -> None:
        self.job = job
        buckets_named = [f"bucket {number}" for number in range(len(job.strategy.buckets))]
        for name, compressor in job.strategy.compressor_of.items():
            buckets_named.append(f"{compressor.type} of {name}")
        self.graph = graph = GraphBuilder((*job.model.names, *buckets_named))
        hosts = [host.slowed_by(job.cluster.costs.host_ns_per_byte) for host in job.cluster.workers]
        self.workers = Workers(job, hosts, graph)
        connections = connected(
            graph,
            [(up,) for up in self.workers.up],
            [(down,) for down in self.workers.down],
            cores=self.workers.cores,
        )
        self.transfers = MeshTransfers(
            job,
            graph,
            connections,
            len(job.model),
            cores=self.workers.cores,
            frame_bytes=frame_bytes,
        )
        shape = (job.workers, job.iterations)
        self.blocks = {
            **{name: np.zeros(shape, np.int64) for name in ("begin", "end")},
            **{
                name: np.zeros((*shape, len(job.model)), np.int64) for name in ("forward", "update")
            },
        }

    def run(self) -> MeshGraph:
        """Build the graph, one iteration after the other."""
        for iteration in range(self.job.iterations):
            steps = [self._compute(rank, iteration) for rank in range(self.job.workers)]
            self.transfers.average(iteration)
            self._update(iteration, steps)
        return MeshGraph(self.graph.freeze(), **self.blocks, **self.transfers.blocks)

    def _compute(self, rank: int, iteration: int) -> int:
        """Add forward, backward and the starts of reduce-scatters.

        Returns the operation at whose end ``step()`` is called.
        """
        graph, blocks, at = self.graph, self.blocks, (rank, iteration)
        computed = self.workers.compute(rank, iteration)
        if iteration:
            before = (rank, iteration - 1)
            graph.depend_each(blocks["end"][before], computed.begin)
            graph.depend_each(blocks["update"][before], computed.forward)
            self.transfers.before_forward(rank, iteration, computed.forward)
        self.transfers.start(rank, iteration, computed.ready)
        blocks["begin"][at], blocks["end"][at] = computed.begin, computed.end
        blocks["forward"][at] = computed.forward
        return computed.step

    def _update(self, iteration: int, steps: list[int]) -> None:
        """Add the updates, and the all-gathers before or after them."""
        self.transfers.begin_updates(iteration)
        for rank, step in enumerate(steps):
            update = self.workers.update(rank, iteration)
            self.graph.depend_each(step, update)
            there = self.transfers.complete(rank, iteration, update)
            if self.job.times.waits_for_all:
                waiting = np.append(update, self.blocks["end"][rank, iteration])
                self.workers.wait_for_all(rank, iteration, there, waiting)
            self.blocks["update"][rank, iteration] = update
        self.transfers.end_updates(iteration)
