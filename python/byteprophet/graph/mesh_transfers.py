"""What ranks exchange among themselves in a graph: reduce-scatters and all-gathers of buckets.

- This models ``native/exchange``: every rank has a connection to every other rank, and sends
  frames. Each rank owns of a bucket what the strategy says; where it owns nothing, nothing is sent.
  Among the operations that it can send to a rank, those of earlier iterations go first, and then
  the one with the smallest place. Connections share the links at both ends fairly.
- A sender does not wait for the receiver, which stores early frames. A shard is averaged once the
  frames of all other ranks have arrived and this rank's own gradients are ready.
- A gradient that travels compressed (``job/compression.py``) is a bucket of its own, before all
  others of its iteration. A thread of each rank compresses what is ready, and computes averages of
  forms that have arrived, one after the other. Forms that are all-gathered have no reduce-scatter.
- If a bucket is not sharded, its gradients are all-gathered as soon as its shards are averaged, and
  every rank updates all its parameters after ``step()``. With unequal owners, this is done chunk by
  chunk (``job/owners.py``). If it is sharded, its parameters are all-gathered after each rank has
  updated its shard. Gradients travel in the type that the strategy says, parameters in their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from byteprophet.errors import UserError
from byteprophet.graph.builder import GraphBuilder
from byteprophet.graph.cores import Cores, Path
from byteprophet.graph.labels import Kind, Label
from byteprophet.graph.model import NONE, WHOLE, Int64Array
from byteprophet.job import Cluster, Job
from byteprophet.job.compression import Form, flat_form
from byteprophet.job.owners import Owners
from byteprophet.job.staleness import steps_by_name
from byteprophet.job.strategy import compressed_buckets

FRAME_BYTES = 256 << 10  # native/exchange looks for more urgent data after each frame

_MOST_FRAMES = 1 << 22  # such a graph takes several gigabytes of memory

OF_THE_MESH = " of the mesh"
"""The end of the names of links that are not a host's, but limit what a mesh makes of it."""


class _Frames(NamedTuple):
    """The frames of all reduce-scatters, or of all all-gathers, of an iteration.

    There are F frames and M messages. A message goes from one rank to another. ``chunk``,
    ``sender``, ``receiver`` and ``size_bytes`` have one value per frame, shape (F,). ``last`` holds
    the index of the last frame of each message, shape (M,).
    """

    chunk: Int64Array
    sender: Int64Array
    receiver: Int64Array
    size_bytes: Int64Array
    last: Int64Array


class MeshTransfers:
    """Adds the exchange of buckets, iteration by iteration. The times of the job are not used.

    In each iteration, call ``start`` for all ranks, then ``average`` and ``begin_updates``, then
    ``complete`` for all ranks, and then ``end_updates``. W is the number of ranks, I of iterations,
    P of parameters, B of buckets, C of chunks. Behind those of the strategy come the buckets of
    compressed gradients.

    Attributes:
        blocks: the numbers of operations, by kind; shape (W, I, B).
    """

    def __init__(
        self,
        job: Job,
        graph: GraphBuilder,
        connections: Int64Array,
        first_name: int,
        parameters: Sequence[int] = (),
        cores: Cores | None = None,
        frame_bytes: int = FRAME_BYTES,
    ) -> None:
        """Prepare the frames.

        Args:
            job: a job without servers.
            graph: the graph to which everything is added.
            connections: from each rank to each other one, (W, W).
            first_name: the place of the first bucket in the graph's names.
            parameters: the parameter to which each tensor of the job belongs; none: its own.
            cores: on which ranks compress gradients; None: each has one for that.
            frame_bytes: the size of all frames of a message but the last.
        """
        self.job = job
        self._frame_bytes = frame_bytes
        self.graph = graph
        self.connections = connections
        compressed = compressed_buckets(job.strategy)
        buckets = (*job.strategy.buckets, *compressed)
        self.compressed = np.arange(len(job.strategy.buckets), len(buckets))
        self.names = first_name + np.arange(len(buckets))
        self.members = [
            np.array([job.model.places[name] for name in b.parameters]) for b in buckets
        ]
        # All tensors, bucket after bucket, and the bucket and the parameter of each.
        self.member = np.concatenate(self.members)
        self.bucket = np.repeat(np.arange(len(buckets)), [len(each) for each in self.members])
        self.parameter = np.array(parameters or range(len(job.model)))[self.member]
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
        self.chunk_bucket, scattered_bytes, gathered_bytes = self._chunks(
            self._bucket_bytes(gradients[self.member]), self._bucket_bytes(gathered)
        )
        self.scatter = self._frames(scattered_bytes, by_sender=False)
        self.gather = self._frames(gathered_bytes, by_sender=True)
        self._cores = cores or Cores(Cluster(job.cluster.workers), graph)
        self._compresses = [
            self._cores.thread(f"worker {rank} compresses", rank) if compressed else NONE
            for rank in range(job.workers)
        ]
        took = {each.parameter: each for each in job.cluster.costs.compressing}
        costs = [took.get(bucket.parameters[0]) for bucket in compressed]
        self._before_ns = np.array([each.before_ns if each else 0 for each in costs], np.int64)
        self._after_ns = np.array([each.after_ns if each else 0 for each in costs], np.int64)
        shape = (job.workers, job.iterations, len(buckets))
        self.blocks = {
            name: np.zeros(shape, np.int64) for name in ("start", "averaged", "gathered")
        }
        self._there = np.zeros(shape, np.int64)  # at whose end averages are there
        chunks = (job.workers, len(self.chunk_bucket))
        self.gathers: Int64Array = np.zeros(chunks, np.int64)  # at whose end all-gathers begin
        self._gathered: Int64Array = np.zeros(chunks, np.int64)

    def _bucket_bytes(self, size_bytes: Int64Array) -> list[int]:
        """The sizes of buckets (B) with members of ``size_bytes``."""
        found = [0] * len(self.members)
        for bucket, each_bytes in zip(self.bucket.tolist(), size_bytes.tolist(), strict=True):
            found[bucket] += each_bytes
        return found

    def _chunks(
        self, reduced_bytes: Sequence[int], gathered_bytes: Sequence[int]
    ) -> tuple[Int64Array, Int64Array, Int64Array]:
        """The bucket of each chunk (C,), and all ranks' shards of it in both halves, (C, W) each.

        Given are the sizes of buckets (B) in both halves. A sharded bucket is one chunk.
        """
        owners = Owners.of(self.job.strategy.owners, self.job.workers)
        forms = dict(zip(self.compressed.tolist(), self._forms(), strict=True))
        bucket: list[int] = []
        reduced: list[tuple[int, ...]] = []
        gathered: list[tuple[int, ...]] = []
        for place, sharded in enumerate(self.sharded):
            form = forms.get(place)
            if form is not None and form.gathered:
                halves = [((0,) * self.job.workers, (form.size_bytes,) * self.job.workers)]
            elif sharded:
                halves = [(owners.sizes(reduced_bytes[place]), owners.sizes(gathered_bytes[place]))]
            else:
                whole = reduced_bytes[place] if form is None else form.size_bytes
                parts = [owners.sizes(c.stop - c.start) for c in owners.chunks(whole, whole)]
                halves = [(part, part) for part in parts]
            bucket += [place] * len(halves)
            reduced += [half for half, _ in halves]
            gathered += [half for _, half in halves]
        shape = (len(bucket), self.job.workers)
        return (
            np.array(bucket, np.int64),
            np.array(reduced, np.int64).reshape(shape),
            np.array(gathered, np.int64).reshape(shape),
        )

    def _forms(self) -> list[Form]:
        """The forms of the compressed gradients."""
        strategy, model = self.job.strategy, self.job.model
        return [
            flat_form(compressor, model.sizes_bytes[model.places[name]])
            for name, compressor in strategy.compressor_of.items()
        ]

    def _frames(self, shard_bytes: Int64Array, *, by_sender: bool) -> _Frames:
        """The frames with which each rank sends shards (C, W) to each other rank.

        With ``by_sender``, these are the sender's own shards (all-gather), otherwise the receiver's
        (reduce-scatter).
        """
        ranks = self.job.workers
        pairs = [(s, r) for s in range(ranks) for r in range(ranks) if s != r]
        chunks = len(shard_bytes)
        chunk = np.repeat(np.arange(chunks), len(pairs))
        sender = np.tile([s for s, _ in pairs], chunks).astype(np.int64)
        receiver = np.tile([r for _, r in pairs], chunks).astype(np.int64)
        message_bytes = shard_bytes[chunk, sender if by_sender else receiver]
        chunk, sender, receiver, message_bytes = (
            each[message_bytes > 0] for each in (chunk, sender, receiver, message_bytes)
        )
        counts = -(-message_bytes // self._frame_bytes)
        frames = int(counts.sum()) * self.job.iterations
        if frames > _MOST_FRAMES:
            raise UserError(
                f"{self.job.iterations} iterations of {ranks} ranks have {frames} frames in each "
                f"half, too many to be replayed (at most {_MOST_FRAMES}): record fewer "
                "iterations, with --record-steps"
            )
        last = np.cumsum(counts) - 1
        sizes = np.full(int(counts.sum()), self._frame_bytes, dtype=np.int64)
        sizes[last] = message_bytes - (counts - 1) * self._frame_bytes
        return _Frames(
            np.repeat(chunk, counts),
            np.repeat(sender, counts),
            np.repeat(receiver, counts),
            sizes,
            last,
        )

    def before_forward(self, rank: int, iteration: int, forward: Int64Array) -> None:
        """Make layers (P,) wait for the all-gathers of the iteration before, if sharded."""
        sharded = self.sharded[self.bucket]
        gathered = self.blocks["gathered"][rank, iteration - 1][self.bucket[sharded]]
        self.graph.depend_each(gathered, forward[self.parameter[sharded]])

    def start(self, rank: int, iteration: int, ready: Int64Array) -> None:
        """Add the starts of reduce-scatters. ``ready`` (P,): when each gradient is ready."""
        start = self.graph.add_block(
            len(self.members),
            self.job.cluster.costs.start_lag_ns,
            label=Label(
                Kind.REDUCE_SCATTER_START, rank=rank, iteration=iteration, tensor=self.names
            ),
        )
        there = ready[self.parameter]
        if len(self.compressed):  # each is the only member of its bucket, and these are the last
            own = there[-len(self.compressed) :]
            own[:] = self._compress(rank, iteration, own, self._before_ns)
            late = np.flatnonzero(self.delay[self.compressed] * iteration)
            before = self._there[rank, iteration - 1, self.compressed[late]]
            self.graph.depend_each(before, own[late])  # which tells what it has not sent
        self.graph.depend_each(there, start[self.bucket])
        self.blocks["start"][rank, iteration] = start

    def _compress(
        self, rank: int, iteration: int, after: Int64Array, took_ns: Int64Array
    ) -> Int64Array:
        """Add what a rank computes of compressed gradients (C,) after operations ``after`` (C,)."""
        label = Label(
            Kind.COMPRESSION, rank, iteration=iteration, tensor=self.names[self.compressed]
        )
        added = self._cores.compute(len(after), took_ns, self._compresses[rank], label)
        self.graph.depend_each(after, added)
        return added

    def _send(self, kind: Kind, frames: _Frames, starts: Int64Array, iteration: int) -> Int64Array:
        """Add the operations of ``frames``, and return their numbers.

        ``starts`` (W, C) holds the operations for which a rank waits before it sends a chunk.
        """
        places = self.reduce_place if kind is Kind.REDUCE_SCATTER else self.gather_place
        graph, costs = self.graph, self.job.cluster.costs
        bucket = self.chunk_bucket[frames.chunk]
        urgent = (iteration + self.delay[bucket]) * self.places + places[bucket]
        sent = graph.add_block(
            len(frames.chunk),
            costs.message_cost_ns,
            device=self.connections[frames.sender, frames.receiver],
            size_bytes=frames.size_bytes,
            latency_ns=costs.delay_ns,
            priority=-urgent,
            label=Label(kind, frames.sender, frames.receiver, iteration, self.names[bucket]),
        )
        graph.depend_each(starts[frames.sender, frames.chunk], sent)
        return sent

    def _arrive(self, frames: _Frames, sent: Int64Array, arrived: Int64Array) -> None:
        """Make each operation in ``arrived`` (W, C) wait for the last frame of every other rank."""
        last = frames.last
        self.graph.depend_each(sent[last], arrived[frames.receiver[last], frames.chunk[last]])

    def _on_all_ranks(self, kind: Kind, iteration: int, buckets: Int64Array) -> Int64Array:
        """Add one operation per rank (W) and entry of ``buckets``, numbers of buckets."""
        ranks = np.arange(self.job.workers)[:, None]
        label = Label(kind, ranks, iteration=iteration, tensor=self.names[buckets])
        return self.graph.add_block((self.job.workers, len(buckets)), label=label)

    def _of_buckets(self, kind: Kind, iteration: int, chunks: Int64Array) -> Int64Array:
        """The operations (W, B) that end with the last of the chunks' ``chunks`` (W, C)."""
        if len(self.chunk_bucket) == len(self.members):
            return chunks
        ends = self._on_all_ranks(kind, iteration, np.arange(len(self.members)))
        self.graph.depend_each(chunks.ravel(), ends[:, self.chunk_bucket].ravel())
        return ends

    def average(self, iteration: int) -> None:
        """Add the reduce-scatters."""
        graph, start = self.graph, self.blocks["start"][:, iteration][:, self.chunk_bucket]
        averaged = self._on_all_ranks(Kind.REDUCE_SCATTER_END, iteration, self.chunk_bucket)
        graph.depend_each(start.ravel(), averaged.ravel())
        sent = self._send(Kind.REDUCE_SCATTER, self.scatter, start, iteration)
        self._arrive(self.scatter, sent, averaged)
        self.gathers = averaged.copy()
        self.blocks["averaged"][:, iteration] = self._of_buckets(
            Kind.REDUCE_SCATTER_END, iteration, averaged
        )

    def begin_updates(self, iteration: int) -> None:
        """Add the ends of all-gathers, for which updates may wait."""
        self._gathered = self._on_all_ranks(Kind.ALL_GATHER_END, iteration, self.chunk_bucket)
        self.blocks["gathered"][:, iteration] = self._of_buckets(
            Kind.ALL_GATHER_END, iteration, self._gathered
        )

    def complete(self, rank: int, iteration: int, update: Int64Array) -> Int64Array:
        """Make the updates (P,) of a rank wait for the averages, or the all-gathers for them.

        Returns the operations at whose end this rank has all averages that this step uses, whole or
        its shards.
        """
        graph, at = self.graph, (rank, iteration)
        where = Label(rank=rank, iteration=iteration)
        lag = graph.add_block(
            len(self.members),
            self.job.cluster.costs.update_lag_ns,
            label=where._replace(kind=Kind.UPDATE_START, tensor=self.names),
        )
        there: Int64Array = np.where(
            self.sharded, self.blocks["averaged"][at], self.blocks["gathered"][at]
        )
        if len(self.compressed):
            there[self.compressed] = self._compress(
                rank, iteration, there[self.compressed], self._after_ns
            )
        self._there[at] = there
        used = self._wait_for_averages(rank, iteration, there, lag)
        graph.depend_each(lag[self.bucket], update[self.parameter])
        begins = np.full(len(self.members), NONE, np.int64)
        begins[self.sharded] = graph.add_block(
            int(self.sharded.sum()),
            label=where._replace(kind=Kind.ALL_GATHER_START, tensor=self.names[self.sharded]),
        )
        sharded = self.sharded[self.bucket]
        graph.depend_each(update[self.parameter[sharded]], begins[self.bucket[sharded]])
        later = self.sharded[self.chunk_bucket]
        self.gathers[rank, later] = begins[self.chunk_bucket[later]]
        return used

    def _wait_for_averages(
        self, rank: int, iteration: int, there: Int64Array, lag: Int64Array
    ) -> Int64Array:
        """Let what follows averages, ``lag`` (B,), wait for those that this step uses.

        ``there`` (B,): the operations at whose end the averages of this iteration are there.
        Returns those at whose end the used ones are.
        """
        now = self.delay == 0
        self.graph.depend_each(there[now], lag[now])
        late = np.flatnonzero((self.delay <= iteration) & ~now)
        earlier = self._there[rank, iteration - self.delay[late], late]
        self.graph.depend_each(earlier, lag[late])
        return np.concatenate((there[now], earlier))

    def end_updates(self, iteration: int) -> None:
        """Add the all-gathers."""
        self.graph.depend_each(self.gathers.ravel(), self._gathered.ravel())
        sent = self._send(Kind.ALL_GATHER, self.gather, self.gathers, iteration)
        self._arrive(self.gather, sent, self._gathered)


def connected(
    graph: GraphBuilder,
    sends: Sequence[tuple[int, ...]],
    receives: Sequence[tuple[int, ...]],
    pace_bps: int = 0,
    cores: Cores | None = None,
) -> Int64Array:
    """Add a connection from each rank to each other one, and return them, shape (W, W).

    ``sends`` and ``receives``: the links that a rank's messages cross on its own side, by rank.
    ``pace_bps``: no connection is faster than that; 0: they are as fast as their links.
    ``cores``: of the ranks, if messages need any.
    """
    ranks = range(len(sends))
    found = np.full((len(sends), len(sends)), NONE, np.int64)
    for s in ranks:
        for r in ranks:
            if r == s:
                continue
            name, route = f"worker {s} to {r}", (*sends[s], *receives[r])
            if pace_bps:
                route = (graph.link(f"{name}{OF_THE_MESH}", pace_bps), *route)
            path = Path((), ()) if cores is None else cores.message(s, r)
            found[s, r] = graph.connection(
                name,
                (*route, *path.links),
                by_priority=True,
                weights=(WHOLE,) * len(route) + path.weights if path.links else (),
            )
    return found
