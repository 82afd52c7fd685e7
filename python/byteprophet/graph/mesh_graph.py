"""The graph of a job whose ranks reduce-scatter and all-gather among themselves, by priority.

    iteration ─► forward, layer by layer ─► backward ─► gradients of a bucket are ready
                   ▲                                          │ every rank sends each other rank
                 update ◄── all-gather ◄── shards averaged ◄──┘ that one's shard
                   (of a sharded bucket: update the shard ─► all-gather ─► forward)

- This models ``native/exchange``: every rank has a connection to every other rank, and sends
  frames. Each rank owns of a bucket what the strategy says; where it owns nothing, nothing is sent.
  Among the operations that it can send to a rank, those of earlier iterations go first, and then
  the one with the smallest place. Connections share the links at both ends fairly.
- A sender does not wait for the receiver, which stores early frames. A shard is averaged once the
  frames of all other ranks have arrived and this rank's own gradients are ready.
- If a bucket is not sharded, its gradients are all-gathered as soon as its shards are averaged, and
  every rank updates all its parameters after ``step()``. If it is sharded, its parameters are
  all-gathered after each rank has updated its shard. Gradients travel in the type that the strategy
  says, parameters in their own.
- A layer of the next forward pass waits only for its own parameters.
- If a bucket's averages are delayed by k steps (``job/staleness.py``), the update of an iteration
  waits for the all-gather of k iterations before, and operations have the priority of the iteration
  in which they are needed. The first k updates wait for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from byteprophet.errors import UserError
from byteprophet.graph.builder import GraphBuilder
from byteprophet.graph.labels import Kind, Label
from byteprophet.graph.model import NONE, Graph, Int64Array
from byteprophet.job import Job
from byteprophet.job.as_executed import as_executed
from byteprophet.job.owners import Owners
from byteprophet.job.staleness import steps_by_name

FRAME_BYTES = 256 << 10  # native/exchange looks for more urgent data after each frame


_MOST_FRAMES = 1 << 22  # such a graph takes several gigabytes of memory


@dataclass(frozen=True)
class MeshGraph:
    """A job's graph, and arrays with the numbers of its operations.

    W is the number of ranks, I of iterations, P of parameters, B of buckets.

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


def build(job: Job) -> MeshGraph:
    """Build the graph of ``job``, which has buckets."""
    return _Build(as_executed(job)).run()


class _Frames(NamedTuple):
    """The frames of all reduce-scatters, or of all all-gathers, of an iteration.

    There are F frames and M messages. A message goes from one rank to another. ``bucket``,
    ``sender``, ``receiver`` and ``size_bytes`` have one value per frame, shape (F,). ``last`` holds
    the index of the last frame of each message, shape (M,).
    """

    bucket: Int64Array
    sender: Int64Array
    receiver: Int64Array
    size_bytes: Int64Array
    last: Int64Array


class _Build:
    """Builds one graph."""

    def __init__(self, job: Job) -> None:
        self.job = job
        buckets_named = [f"bucket {number}" for number in range(len(job.strategy.buckets))]
        self.graph = graph = GraphBuilder((*job.model.names, *buckets_named))
        self.parameters = np.arange(len(job.model))
        self.bucket_labels = len(job.model) + np.arange(len(buckets_named))
        ranks, buckets = job.workers, job.strategy.buckets
        hosts = [host.slowed_by(job.cluster.costs.host_ns_per_byte) for host in job.cluster.workers]
        ups = [
            graph.link(f"worker {r} up", host.up_bps or None, host.burst_bytes)
            for r, host in enumerate(hosts)
        ]
        downs = [
            graph.link(f"worker {r} down", host.down_bps or None, host.burst_bytes)
            for r, host in enumerate(hosts)
        ]
        self.computes = [graph.serial(f"worker {r} computes") for r in range(ranks)]
        self.updates = [graph.serial(f"worker {r} updates") for r in range(ranks)]
        self.connections = np.array(
            [
                [
                    graph.connection(f"worker {s} to {r}", (ups[s], downs[r]), by_priority=True)
                    if r != s
                    else -1
                    for r in range(ranks)
                ]
                for s in range(ranks)
            ]
        )
        self.members = [
            np.array([job.model.places[name] for name in b.parameters]) for b in buckets
        ]
        # All parameters, bucket after bucket, and the bucket of each.
        self.member = np.concatenate(self.members)
        self.bucket = np.repeat(np.arange(len(buckets)), [len(each) for each in self.members])
        self.sharded = np.array([bucket.sharded for bucket in buckets], dtype=bool)
        steps = steps_by_name(job.strategy.staleness)
        self.delay = np.array([steps.get(bucket.parameters[0], 0) for bucket in buckets])
        places = sorted({p for b in buckets for p in (b.reduce_place, b.gather_place)})
        number = {place: n for n, place in enumerate(places)}
        self.reduce_place = np.array([number[bucket.reduce_place] for bucket in buckets])
        self.gather_place = np.array([number[bucket.gather_place] for bucket in buckets])
        self.places = len(places)
        gradients, sizes = np.array(job.wire_bytes), np.array(job.model.sizes_bytes)
        gathered = np.where(self.sharded[self.bucket], sizes[self.member], gradients[self.member])
        self.scatter = self._frames(self._shard_bytes(gradients[self.member]), by_sender=False)
        self.gather = self._frames(self._shard_bytes(gathered), by_sender=True)
        shape = (ranks, job.iterations)
        self.blocks = {
            **{name: np.zeros(shape, np.int64) for name in ("begin", "end")},
            **{name: np.zeros((*shape, len(sizes)), np.int64) for name in ("forward", "update")},
            **{
                name: np.zeros((*shape, len(buckets)), np.int64)
                for name in ("start", "averaged", "gathered")
            },
        }

    def run(self) -> MeshGraph:
        """Build the graph, one iteration after the other."""
        for iteration in range(self.job.iterations):
            steps = [self._compute(rank, iteration) for rank in range(self.job.workers)]
            self._average(iteration)
            self._finish(iteration, steps)
        return MeshGraph(self.graph.freeze(), **self.blocks)

    def _shard_bytes(self, size_bytes: Int64Array) -> Int64Array:
        """The sizes of all ranks' shards (B, W) of buckets with members of ``size_bytes``."""
        owners = Owners.of(self.job.strategy.owners, self.job.workers)
        bucket_bytes = np.zeros(len(self.members), np.int64)
        np.add.at(bucket_bytes, self.bucket, size_bytes)
        return np.array([owners.sizes(each) for each in bucket_bytes.tolist()])

    def _frames(self, shard_bytes: Int64Array, *, by_sender: bool) -> _Frames:
        """The frames with which each rank sends shards (B, W) to each other rank.

        With ``by_sender``, these are the sender's own shards (all-gather), otherwise the receiver's
        (reduce-scatter).
        """
        ranks = self.job.workers
        pairs = [(s, r) for s in range(ranks) for r in range(ranks) if s != r]
        bucket = np.repeat(np.arange(len(self.members)), len(pairs))
        sender = np.tile([s for s, _ in pairs], len(self.members)).astype(np.int64)
        receiver = np.tile([r for _, r in pairs], len(self.members)).astype(np.int64)
        message_bytes = shard_bytes[bucket, sender if by_sender else receiver]
        bucket, sender, receiver, message_bytes = (
            each[message_bytes > 0] for each in (bucket, sender, receiver, message_bytes)
        )
        counts = -(-message_bytes // FRAME_BYTES)
        frames = int(counts.sum()) * self.job.iterations
        if frames > _MOST_FRAMES:
            raise UserError(
                f"{self.job.iterations} iterations of {ranks} ranks have {frames} frames in each "
                f"half, too many to be replayed (at most {_MOST_FRAMES}): record fewer "
                "iterations, with --record-steps"
            )
        last = np.cumsum(counts) - 1
        sizes = np.full(int(counts.sum()), FRAME_BYTES, dtype=np.int64)
        sizes[last] = message_bytes - (counts - 1) * FRAME_BYTES
        return _Frames(
            np.repeat(bucket, counts),
            np.repeat(sender, counts),
            np.repeat(receiver, counts),
            sizes,
            last,
        )

    def _compute(self, rank: int, iteration: int) -> int:
        """Add forward, backward and the starts of reduce-scatters.

        Returns the operation at whose end ``step()`` is called.
        """
        graph, blocks, times = self.graph, self.blocks, self.job.times
        device, at = self.computes[rank], (rank, iteration)
        where = Label(rank=rank, iteration=iteration)
        begin = graph.add_block(1, label=where._replace(kind=Kind.ITERATION))
        forward = graph.add_block(
            len(self.job.model),
            times.forward_ns[at],
            device=device,
            label=where._replace(kind=Kind.FORWARD, tensor=self.parameters),
        )
        graph.chain(np.concatenate([begin, forward]))
        if iteration:
            before = (rank, iteration - 1)
            graph.depend_each(blocks["end"][before], begin)
            graph.depend_each(blocks["update"][before], forward)
            sharded = self.sharded[self.bucket]
            gathered = blocks["gathered"][before][self.bucket[sharded]]
            graph.depend_each(gathered, forward[self.member[sharded]])
        ready_ns = times.ready_ns[at]
        order = np.lexsort((-np.arange(len(ready_ns)), ready_ns))
        ends_ns = np.append(ready_ns[order], max(times.backward_ns[at], ready_ns.max()))
        backward = graph.add_block(
            len(ends_ns),
            np.diff(ends_ns, prepend=0),
            device=device,
            label=where._replace(kind=Kind.BACKWARD, tensor=np.append(order, NONE)),
        )
        graph.chain(np.concatenate([forward[-1:], backward]))
        ready: Int64Array = np.empty(len(order), np.int64)
        ready[order] = backward[:-1]
        start = graph.add_block(
            len(self.members),
            self.job.cluster.costs.start_lag_ns,
            label=where._replace(kind=Kind.REDUCE_SCATTER_START, tensor=self.bucket_labels),
        )
        graph.depend_each(ready[self.member], start[self.bucket])
        blocks["begin"][at], blocks["end"][at] = begin[0], backward[-1]
        blocks["forward"][at], blocks["start"][at] = forward, start
        return int(backward[-2])

    def _send(self, kind: Kind, frames: _Frames, starts: Int64Array, iteration: int) -> Int64Array:
        """Add the operations of ``frames``, and return their numbers.

        ``starts`` (W, B) holds the operations for which a rank waits before it sends a bucket.
        """
        places = self.reduce_place if kind is Kind.REDUCE_SCATTER else self.gather_place
        graph, costs = self.graph, self.job.cluster.costs
        urgent = (iteration + self.delay[frames.bucket]) * self.places + places[frames.bucket]
        sent = graph.add_block(
            len(frames.bucket),
            costs.message_cost_ns,
            device=self.connections[frames.sender, frames.receiver],
            size_bytes=frames.size_bytes,
            latency_ns=costs.delay_ns,
            priority=-urgent,
            label=Label(
                kind, frames.sender, frames.receiver, iteration, self.bucket_labels[frames.bucket]
            ),
        )
        graph.depend_each(starts[frames.sender, frames.bucket], sent)
        return sent

    def _arrive(self, frames: _Frames, sent: Int64Array, arrived: Int64Array) -> None:
        """Make each operation in ``arrived`` (W, B) wait for the last frame of every other rank."""
        last = frames.last
        self.graph.depend_each(sent[last], arrived[frames.receiver[last], frames.bucket[last]])

    def _on_all_ranks(self, kind: Kind, iteration: int) -> Int64Array:
        """Add one operation per rank and bucket (W, B)."""
        shape = (self.job.workers, len(self.members))
        ranks = np.arange(shape[0])[:, None]
        label = Label(kind, ranks, iteration=iteration, tensor=self.bucket_labels)
        return self.graph.add_block(shape, label=label)

    def _average(self, iteration: int) -> None:
        """Add the reduce-scatters."""
        graph, start = self.graph, self.blocks["start"][:, iteration]
        averaged = self._on_all_ranks(Kind.REDUCE_SCATTER_END, iteration)
        graph.depend_each(start.ravel(), averaged.ravel())
        sent = self._send(Kind.REDUCE_SCATTER, self.scatter, start, iteration)
        self._arrive(self.scatter, sent, averaged)
        self.blocks["averaged"][:, iteration] = averaged

    def _finish(self, iteration: int, steps: list[int]) -> None:
        """Add the updates, and the all-gathers before or after them."""
        graph, blocks, times = self.graph, self.blocks, self.job.times
        averaged = blocks["averaged"][:, iteration]
        gathered = self._on_all_ranks(Kind.ALL_GATHER_END, iteration)
        updates, gathers = [], averaged.copy()
        for rank, step in enumerate(steps):
            where = Label(rank=rank, iteration=iteration)
            update = graph.add_block(
                len(self.job.model),
                times.update_ns[rank, iteration],
                device=self.updates[rank],
                label=where._replace(kind=Kind.UPDATE, tensor=self.parameters),
            )
            graph.depend_each(step, update)
            lag = graph.add_block(
                len(self.members),
                self.job.cluster.costs.update_lag_ns,
                label=where._replace(kind=Kind.UPDATE_START, tensor=self.bucket_labels),
            )
            there = np.where(self.sharded, averaged[rank], gathered[rank])
            self._wait_for_averages(rank, iteration, there, lag)
            graph.depend_each(lag[self.bucket], update[self.member])
            gathers[rank, self.sharded] = graph.add_block(
                int(self.sharded.sum()),
                label=where._replace(
                    kind=Kind.ALL_GATHER_START, tensor=self.bucket_labels[self.sharded]
                ),
            )
            sharded = self.sharded[self.bucket]
            updated = gathers[rank, self.bucket[sharded]]
            graph.depend_each(update[self.member[sharded]], updated)
            updates.append(update)
        graph.depend_each(gathers.ravel(), gathered.ravel())
        sent = self._send(Kind.ALL_GATHER, self.gather, gathers, iteration)
        self._arrive(self.gather, sent, gathered)
        blocks["update"][:, iteration] = updates
        blocks["gathered"][:, iteration] = gathered

    def _wait_for_averages(
        self, rank: int, iteration: int, there: Int64Array, lag: Int64Array
    ) -> None:
        """Let what follows averages, ``lag`` (B,), wait for those that this step uses.

        ``there`` (B,): the operations at whose end the averages of this iteration are there.
        """
        known = self.delay <= iteration
        now = self.delay == 0
        self.graph.depend_each(there[now], lag[now])
        late = np.flatnonzero(known & ~now)
        earlier = self.blocks["gathered"][rank, iteration - self.delay[late], late]
        self.graph.depend_each(earlier, lag[late])
