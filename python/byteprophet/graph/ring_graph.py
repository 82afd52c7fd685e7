"""The graph of an all-reduce job: every layer, bucket, and message from each rank to the next.

    iteration ─► forward ─► backward, bucket by bucket ─► update ─► next iteration
                                │ complete                  ▲ all sums are there
                              start ─► messages of a ring ─► done

- A bucket is cut into as many chunks as there are ranks. In each of 2 (ranks - 1) steps every rank
  sends a chunk to the next one: first those that it has added up (reduce-scatter), then those that
  are sums (all-gather). What it sends in a step is what it received in the step before.
- A rank works on ``at_once`` buckets at a time, in their order: a gate before ``start`` that is
  acknowledged by ``done``. A message needs both its ends: nothing is sent to a rank that has not
  started on the bucket.
- Messages of buckets under way share the links of the sender and the receiver fairly.
- Next to nothing waits in between: DistributedDataParallel's backward returns with all sums, then
  the optimizer makes all updates, then comes the next forward.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from byteprophet.graph.builder import GraphBuilder
from byteprophet.graph.model import Graph, Int64Array
from byteprophet.graph.ring_job import RingJob

# Strict priority, so many at a time: the order in which PyTorch's threads take collectives.
_GATE = "p3"


@dataclass(frozen=True)
class RingGraph:
    """A job's graph, and which operation is what. W, I, L, B as in ``RingCompute``; S steps.

    ``begin``, ``update`` (W, I). ``forward`` (W, I, L). ``backward`` (W, I, B): in order of
    readiness. ``start``, ``done`` (W, I, B): of buckets. ``message`` (I, B, S, W): by sender.
    """

    graph: Graph
    begin: Int64Array
    forward: Int64Array
    backward: Int64Array
    start: Int64Array
    message: Int64Array
    done: Int64Array
    update: Int64Array


def chunk_bytes(bucket_bytes: int, ranks: int) -> Int64Array:
    """The sizes of a bucket's chunks, shape (ranks,); they differ by one byte at most."""
    return bucket_bytes // ranks + (np.arange(ranks) < bucket_bytes % ranks).astype(np.int64)


def build(job: RingJob) -> RingGraph:
    """The graph of ``job``."""
    return _Build(job).run()


class _Build:
    """One graph in the making."""

    def __init__(self, job: RingJob) -> None:
        self.job = job
        self.graph = GraphBuilder()
        ranks, buckets, add = job.workers, len(job.bucket_bytes), self.graph
        rates_bps = job.network.reduced_bps
        up = [add.link(f"worker {w} up", rates_bps[w] or None) for w in range(ranks)]
        down = [add.link(f"worker {w} down", rates_bps[w] or None) for w in range(ranks)]
        self.computes = [add.serial(f"worker {w} computes") for w in range(ranks)]
        # By bucket, then sender. One per bucket, so that those under way share links fairly.
        self.connections = np.array(
            [
                [
                    add.connection(f"bucket {b}, worker {w}", (up[w], down[(w + 1) % ranks]))
                    for w in range(ranks)
                ]
                for b in range(buckets)
            ]
        )
        limit = {"outstanding_messages": job.at_once}
        self.gates = [add.gate(f"worker {w} reduces", _GATE, limit) for w in range(ranks)]
        self.steps = 2 * (ranks - 1)
        sender = np.arange(ranks)
        # In step s, rank r sends chunk r - s. Shape (buckets, steps, ranks).
        chunk = (sender - np.arange(self.steps)[:, None]) % ranks
        self.message_bytes = np.array([chunk_bytes(n, ranks)[chunk] for n in job.bucket_bytes])

        shape = (ranks, job.iterations)
        self.blocks = {
            "begin": np.zeros(shape, np.int64),
            "forward": np.zeros((*shape, len(job.layers)), np.int64),
            "backward": np.zeros((*shape, buckets), np.int64),
            "start": np.zeros((*shape, buckets), np.int64),
            "message": np.zeros((job.iterations, buckets, self.steps, ranks), np.int64),
            "done": np.zeros((*shape, buckets), np.int64),
            "update": np.zeros(shape, np.int64),
        }

    def run(self) -> RingGraph:
        """Iteration after iteration."""
        for iteration in range(self.job.iterations):
            for rank in range(self.job.workers):
                self._compute(rank, iteration)
            self._reduce(iteration)
            for rank in range(self.job.workers):
                self._update(rank, iteration)
        return RingGraph(self.graph.freeze(), **self.blocks)

    def _compute(self, rank: int, iteration: int) -> None:
        """Forward and backward, and the buckets that become complete."""
        graph, blocks, compute = self.graph, self.blocks, self.job.compute
        device, at = self.computes[rank], (rank, iteration)
        begin = graph.add_block(1)
        graph.mark_iteration(int(begin[0]), self.gates[rank])
        if iteration:
            graph.depend_each(blocks["update"][rank, iteration - 1], begin)
        layers_ns, complete_ns = compute.forward_ns[at], compute.bucket_ns[at]
        forward = graph.add_block(len(layers_ns), layers_ns, device=device)
        order = np.argsort(complete_ns, kind="stable")
        backward_ns = np.diff(complete_ns[order], prepend=0)
        backward = graph.add_block(len(order), backward_ns, device=device)
        graph.chain(np.concatenate([begin, forward, backward]))
        start, done = graph.add_block(len(order)), graph.add_block(len(order))
        graph.depend_each(backward, start[order])
        bucket = np.arange(len(order))
        graph.guard_block(
            start, self.gates[rank], key=bucket << 16, server=0, priority=-1 - bucket, acked_by=done
        )
        blocks["begin"][at], blocks["forward"][at], blocks["backward"][at] = (
            begin[0],
            forward,
            backward,
        )
        blocks["start"][at], blocks["done"][at] = start, done

    def _reduce(self, iteration: int) -> None:
        """All messages of all buckets."""
        graph, sizes = self.graph, self.message_bytes
        start, done = (self.blocks[name][:, iteration] for name in ("start", "done"))
        if not self.steps:
            graph.depend_each(start.ravel(), done.ravel())
            return
        message = graph.add_block(
            sizes.size,
            device=np.broadcast_to(self.connections[:, None], sizes.shape).ravel(),
            size_bytes=sizes.ravel(),
            latency_ns=self.job.network.delay_ns,
        ).reshape(sizes.shape)
        received = np.roll(message, 1, axis=2)  # by receiver
        graph.depend_each(received[:, :-1].ravel(), message[:, 1:].ravel())
        for end in (start.T, np.roll(start.T, -1, axis=1)):
            graph.depend_each(np.broadcast_to(end[:, None], sizes.shape).ravel(), message.ravel())
        graph.depend_each(received[:, -1].ravel(), done.T.ravel())
        self.blocks["message"][iteration] = message

    def _update(self, rank: int, iteration: int) -> None:
        graph, blocks, at = self.graph, self.blocks, (rank, iteration)
        update_ns = self.job.compute.update_ns[at]
        update = graph.add_block(1, update_ns, device=self.computes[rank])
        graph.depend_each(blocks["backward"][at][-1:], update)
        graph.depend_each(blocks["done"][at], update)
        blocks["update"][at] = update[0]
