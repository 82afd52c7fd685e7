"""The graph of a job that uses gloo's collectives, and whose optimizer waits for all of them.

    DDP, WFBP   iteration ─► forward ─► backward ─► bucket complete ─► all-reduce ─► update ─► …
    FSDP2       iteration ─► all-gathers of all units ─► forward, unit by unit ─► backward
                                             ─► unit complete ─► reduce-scatter ─► update ─► …

- An all-reduce is a ring. The bucket is divided into as many chunks as there are ranks. In each of
  2 (ranks - 1) steps, every rank sends a chunk to the next rank: partial sums in the first half of
  the steps, complete sums in the second half. An all-gather is the second half of such a ring, and
  each chunk travels in two parts. A reduce-scatter is an all-to-all: every rank sends each other
  rank its shard, all at once.
- A rank works on as many collectives at a time as PyTorch has threads for gloo, in their order. In
  the graph, a gate in front of a collective's start is acknowledged by the collective's end. A
  message starts only when both ranks have started the collective.
- Messages of all-reduces in flight share the links of the sender and the receiver fairly. Under
  FSDP2, where the first transfers after a pause are on their own, what a rank sends to another one
  stands in line, as in gloo's sockets. So does its request for a message of the other one, which
  comes after its own part of the same collective. The rank that begins last was asked before and
  sends at once; the other one may not send before that is through
  (``experiments/gloo_requests.py``).
- The optimizer makes all updates when all collectives are done. Then the next iteration begins. If
  the script waits for all averages, what follows its last gradient waits for them, too.
- A worker hands buckets over in its backward pass, which takes it ``Costs.bucket_ns`` each. It does
  so in their order, which is the same on all ranks, so a bucket waits for those before it. Else
  ranks might wait for each other with all of their threads, each in another collective.
- Where ranks share cores, computing and messages slow each other down (``cores.py``). What messages
  cost beside their bytes comes at once, in front of a collective's first message. If more
  ranks than cores compute, a message also waits until its thread gets a core. With more ranks, more
  messages of a collective follow each other, and with smaller buckets, less is sent meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from byteprophet.graph.builder import GraphBuilder
from byteprophet.graph.cores import Cores
from byteprophet.graph.labels import Kind, Label
from byteprophet.graph.model import NONE, WHOLE, Graph, Int64Array
from byteprophet.job import Job
from byteprophet.job.as_executed import as_executed
from byteprophet.job.strategy import FSDP2

# Strict priority with a limited number in flight, which is how gloo's threads take collectives.
_GATE = "p3"


@dataclass(frozen=True)
class GlooGraph:
    """A job's graph, and arrays with the numbers of its operations.

    W is the number of ranks, I of iterations, P of parameters, B of buckets that are not frozen,
    and C of collectives: B, or, under FSDP2, first an all-gather of each unit, then B
    reduce-scatters.

    Attributes:
        graph: the graph.
        begin: the begin of iterations, shape (W, I).
        update: the updates, (W, I).
        forward: the forward of layers, (W, I, P).
        ready: the completion of buckets, (W, I, B).
        start: the start of collectives, in their order, (W, I, C).
        done: their end, (W, I, C).
        message: for each iteration and collective, the messages in an array of shape (steps, W);
            an all-gather has two steps per chunk, and an all-to-all one per other rank.
    """

    graph: Graph
    begin: Int64Array
    update: Int64Array
    forward: Int64Array
    ready: Int64Array
    start: Int64Array
    done: Int64Array
    message: list[list[Int64Array]]


def chunk_bytes(bucket_bytes: int, ranks: int) -> Int64Array:
    """The sizes of a bucket's chunks, shape (ranks,). They differ by at most one byte."""
    return bucket_bytes // ranks + (np.arange(ranks) < bucket_bytes % ranks).astype(np.int64)


def build(job: Job) -> GlooGraph:
    """Build the graph of ``job``, which runs under DDP, WFBP or FSDP2."""
    return _Build(as_executed(job)).run()


@dataclass(frozen=True)
class _Collective:
    """A collective of ``bucket`` that happens in every iteration.

    ``gathers`` is True for the all-gather of an FSDP2 unit, and False for an all-reduce or a
    reduce-scatter. ``message_bytes`` and ``receivers`` say how much each rank, by column, sends to
    whom, with the shape of an array in ``GlooGraph.message``. ``connections``, of the same shape:
    theirs. ``queues``, (W,): where the ranks' threads wait for cores; None: nothing waits.
    """

    bucket: int
    gathers: bool
    connections: Int64Array
    receivers: Int64Array
    message_bytes: Int64Array
    queues: Int64Array | None


class _Build:
    """Builds one graph."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.ranks, self.fsdp = job.workers, job.strategy.runtime == FSDP2
        buckets_named = [f"bucket {number}" for number in range(len(job.strategy.buckets))]
        self.graph = graph = GraphBuilder((*job.model.names, *buckets_named))
        self.parameters = np.arange(len(job.model))
        self.reduces_start, self.reduces_end = (
            (Kind.REDUCE_SCATTER_START, Kind.REDUCE_SCATTER_END)
            if self.fsdp
            else (Kind.ALL_REDUCE_START, Kind.ALL_REDUCE_END)
        )
        trains = {each: job.model.trains(each.parameters) for each in job.strategy.buckets}
        self.buckets = sorted(trains, key=lambda each: (not trains[each], each.reduce_place))
        self.reduced = sum(trains.values())  # so many of the buckets, from the first one on
        self.members = [np.array([job.model.places[n] for n in b.parameters]) for b in self.buckets]
        hosts = [host.slowed_by(job.cluster.costs.host_ns_per_byte) for host in job.cluster.workers]
        self.up = [
            graph.link(f"worker {r} up", host.up_bps or None, host.burst_bytes)
            for r, host in enumerate(hosts)
        ]
        self.down = [
            graph.link(f"worker {r} down", host.down_bps or None, host.burst_bytes)
            for r, host in enumerate(hosts)
        ]
        self.cores = Cores(job.cluster, graph)
        self.computes = [self.cores.thread(f"worker {r} computes", r) for r in range(self.ranks)]
        self.carries = self._carriers()
        limit = {"outstanding_messages": job.cluster.costs.collectives_at_once}
        self.gates = [graph.gate(f"worker {r} reduces", _GATE, limit) for r in range(self.ranks)]
        self.lines = self._lines()
        self.collectives = self._collectives()
        shape = (self.ranks, job.iterations)
        count = len(self.collectives)
        self.blocks = {
            "begin": np.zeros(shape, np.int64),
            "update": np.zeros(shape, np.int64),
            "forward": np.zeros((*shape, len(job.model)), np.int64),
            "ready": np.zeros((*shape, self.reduced), np.int64),
            "start": np.zeros((*shape, count), np.int64),
            "done": np.zeros((*shape, count), np.int64),
        }
        self.message: list[list[Int64Array]] = []

    def run(self) -> GlooGraph:
        """Build the graph, one iteration after the other."""
        for iteration in range(self.job.iterations):
            for rank in range(self.ranks):
                self._compute(rank, iteration)
            self.message.append(
                [self._exchange(number, iteration) for number in range(len(self.collectives))]
            )
            for rank in range(self.ranks):
                self._update(rank, iteration)
        return GlooGraph(self.graph.freeze(), **self.blocks, message=self.message)

    def _carriers(self) -> list[int]:
        """A thread per rank for what messages cost beside their bytes; none: it costs nothing."""
        if not self.cores.shared or not self.job.cluster.costs.message_processor_ns:
            return []
        return [self.cores.thread(f"worker {r} carries messages", r) for r in range(self.ranks)]

    def _collectives(self) -> list[_Collective]:
        """The collectives, in the order in which ranks start them."""
        numbered = [*enumerate(self._bucket_bytes(self.job.wire_bytes))]
        if not self.fsdp:
            steps = 2 * (self.ranks - 1)
            return [self._ring(bucket, size, steps) for bucket, size in numbered]
        units = [*enumerate(self._bucket_bytes(self.job.model.sizes_bytes))]
        by_gather = sorted(units, key=lambda pair: self.buckets[pair[0]].gather_place)
        gathers = [self._gather(bucket, size) for bucket, size in by_gather]
        reduces = [self._all_to_all(bucket, size) for bucket, size in numbered[: self.reduced]]
        return gathers + reduces

    def _bucket_bytes(self, sizes_bytes: Sequence[int]) -> list[int]:
        """The sizes of buckets whose parameters have ``sizes_bytes``, (P,)."""
        sizes = np.array(sizes_bytes)
        return [int(sizes[members].sum()) for members in self.members]

    def _ring(self, bucket: int, size_bytes: int, steps: int) -> _Collective:
        ranks = self.ranks
        sender = np.arange(ranks)
        # Each collective has its own connections, so that those in flight share links fairly.
        connections = [
            self._connection(
                f"collective of bucket {bucket}, worker {rank}", rank, (rank + 1) % ranks
            )
            for rank in range(ranks)
        ]
        chunk = (sender - np.arange(steps)[:, None]) % ranks  # in step s, rank r sends chunk r - s
        shape = (steps, ranks)
        return _Collective(
            bucket,
            False,
            np.broadcast_to(connections, shape),
            np.broadcast_to((sender + 1) % ranks, shape),
            chunk_bytes(size_bytes, ranks)[chunk],
            self._queues(bucket),
        )

    def _gather(self, bucket: int, size_bytes: int) -> _Collective:
        sender, steps = np.arange(self.ranks), np.arange(self.ranks - 1)
        chunks_bytes = chunk_bytes(size_bytes, self.ranks)[(sender - steps[:, None]) % self.ranks]
        first_bytes = (chunks_bytes + 1) // 2
        parts_bytes = np.stack([first_bytes, chunks_bytes - first_bytes], axis=1)
        next_ranks = np.broadcast_to((sender + 1) % self.ranks, (2 * len(steps), self.ranks))
        return self._in_line(bucket, True, next_ranks, parts_bytes.reshape(next_ranks.shape))

    def _all_to_all(self, bucket: int, size_bytes: int) -> _Collective:
        receivers = (np.arange(self.ranks) + np.arange(1, self.ranks)[:, None]) % self.ranks
        sizes_bytes = chunk_bytes(size_bytes, self.ranks)[receivers]
        return self._in_line(bucket, False, receivers, sizes_bytes)

    def _in_line(
        self, bucket: int, gathers: bool, receivers: Int64Array, message_bytes: Int64Array
    ) -> _Collective:
        """A collective whose messages stand in line with all others between two ranks."""
        connections = [
            [self.lines[sender, receiver] for sender, receiver in enumerate(row)]
            for row in receivers.tolist()
        ]
        connected = np.array(connections, np.int64).reshape(receivers.shape)
        queues = self._queues(bucket)
        return _Collective(bucket, gathers, connected, receivers, message_bytes, queues)

    def _lines(self) -> dict[tuple[int, int], int]:
        """The connection of each rank to each other one, for all of their messages."""
        pairs = product(range(self.ranks), repeat=2) if self.fsdp else ()
        return {
            (sender, receiver): self._connection(f"worker {sender} to {receiver}", sender, receiver)
            for sender, receiver in pairs
            if sender != receiver
        }

    def _queues(self, bucket: int) -> Int64Array | None:
        """Where the ranks' threads wait for cores; None if one of them does not."""
        named = [(f"turn of bucket {bucket}, worker {rank}", rank) for rank in range(self.ranks)]
        queues = [self.cores.queue(name, rank) for name, rank in named]
        return None if None in queues else np.array(queues, np.int64)

    def _connection(self, name: str, sender: int, receiver: int) -> int:
        route = (self.up[sender], self.down[receiver])
        path = self.cores.message(sender, receiver)
        weights = (WHOLE,) * len(route) + path.weights if path.links else ()
        return self.graph.connection(name, (*route, *path.links), weights=weights)

    def _label(self, bucket: int | Int64Array) -> int | Int64Array:
        """The index of the name of one or several buckets."""
        return len(self.job.model) + bucket

    def _kinds(self, collective: _Collective) -> Int64Array:
        """The kind of messages in each step; those of an all-reduce begin with reduce-scatter."""
        steps = collective.message_bytes.shape[0]
        kinds = np.full((steps, 1), Kind.ALL_GATHER, np.int64)
        if not collective.gathers:
            kinds[: steps if self.fsdp else steps // 2] = Kind.REDUCE_SCATTER
        return kinds

    def _compute(self, rank: int, iteration: int) -> None:
        """Add forward and backward, and the starts and ends of collectives."""
        graph, blocks, times = self.graph, self.blocks, self.job.times
        device, at = self.computes[rank], (rank, iteration)
        where = Label(rank=rank, iteration=iteration)
        begin = graph.add_block(1, label=where._replace(kind=Kind.ITERATION))
        graph.mark_iteration(int(begin[0]), self.gates[rank])
        if iteration:
            graph.depend_each(blocks["update"][rank, iteration - 1], begin)
        forward = self.cores.compute(
            len(self.job.model),
            times.forward_ns[at],
            device,
            where._replace(kind=Kind.FORWARD, tensor=self.parameters),
        )
        ready_ns = times.ready_ns[at]
        trained = self.members[: self.reduced]
        complete_ns = np.array([ready_ns[members].max() for members in trained])
        order = np.argsort(complete_ns, kind="stable")
        ends_ns = np.append(complete_ns[order], max(times.backward_ns[at], complete_ns.max()))
        took_ns = np.diff(ends_ns, prepend=0)
        bucket_ns = self.job.cluster.costs.bucket_ns
        took_ns[1:] += bucket_ns
        tensors = np.append(self._label(order), NONE)
        if times.waits_for_all:  # what follows waits, but not the hand-over of the last bucket
            took_ns = np.append(took_ns[:-1], (bucket_ns, took_ns[-1] - bucket_ns))
            tensors = np.append(tensors, NONE)
        backward = self.cores.compute(
            len(took_ns), took_ns, device, where._replace(kind=Kind.BACKWARD, tensor=tensors)
        )
        graph.chain(np.concatenate([begin, forward, backward]))
        count = len(self.collectives)
        labels = self._label(np.array([collective.bucket for collective in self.collectives]))
        gathers = np.array([collective.gathers for collective in self.collectives])
        start, done = (
            graph.add_block(count, label=where._replace(kind=kinds, tensor=labels))
            for kinds in (
                np.where(gathers, Kind.ALL_GATHER_START, self.reduces_start),
                np.where(gathers, Kind.ALL_GATHER_END, self.reduces_end),
            )
        )
        place = np.argsort(order)  # of each bucket in the order of completion
        ready = backward[place]
        handed = backward[np.maximum.accumulate(place)]
        for number, collective in enumerate(self.collectives):
            if collective.gathers:
                graph.depend_each(begin, start[number])
                graph.depend_each(done[number], forward[self.members[collective.bucket].min()])
            else:
                graph.depend_each(handed[collective.bucket], start[number])
        numbers = np.arange(count)
        graph.guard_block(
            start,
            self.gates[rank],
            key=numbers << 16,
            server=0,
            priority=-1 - numbers,
            acked_by=done,
        )
        blocks["begin"][at], blocks["update"][at] = begin[0], backward[-1]
        blocks["forward"][at], blocks["ready"][at] = forward, ready
        blocks["start"][at], blocks["done"][at] = start, done

    def _exchange(self, number: int, iteration: int) -> Int64Array:
        """Add the messages of one collective."""
        graph, collective = self.graph, self.collectives[number]
        start = self.blocks["start"][:, iteration, number]
        done = self.blocks["done"][:, iteration, number]
        sizes = collective.message_bytes
        if not sizes.size:
            graph.depend_each(start, done)
            return np.zeros(sizes.shape, np.int64)
        label = Label(
            self._kinds(collective),
            np.arange(self.ranks),
            iteration=iteration,
            tensor=self._label(collective.bucket),
            part=np.arange(sizes.shape[0])[:, None],
        )
        if self.fsdp:
            return self._exchange_in_line(collective, iteration, start, done, label)
        message = graph.add_block(
            sizes.shape,
            device=collective.connections,
            size_bytes=sizes,
            latency_ns=self.job.cluster.costs.delay_ns,
            label=label,
        )
        begin = self._turns(collective, iteration, message)
        start = self._carried(collective, iteration, start)
        received = np.roll(message, 1, axis=1)  # by receiver
        graph.depend_each(received[:-1].ravel(), begin[1:].ravel())
        for ready in (start, np.roll(start, -1)):
            graph.depend_each(np.broadcast_to(ready, sizes.shape).ravel(), begin.ravel())
        graph.depend_each(received[-1], done)
        return message

    def _exchange_in_line(
        self,
        collective: _Collective,
        iteration: int,
        start: Int64Array,
        done: Int64Array,
        label: Label,
    ) -> Int64Array:
        """Add the messages of a collective, each of which its receiver asks for."""
        graph, sizes, receivers = self.graph, collective.message_bytes, collective.receivers
        steps, ranks = sizes.shape
        delay_ns = self.job.cluster.costs.delay_ns
        sent, asked = np.zeros(sizes.shape, np.int64), np.zeros(sizes.shape, np.int64)
        for step in range(steps):  # of what is there at one time, what was added first goes first
            row = label._replace(kind=label.kind[step], part=step)  # type: ignore[index]
            sent[step] = graph.add_block(
                ranks,
                device=collective.connections[step],
                size_bytes=sizes[step],
                latency_ns=delay_ns - delay_ns // 2,
                label=row,
            )
            back = [self.lines[to, sender] for sender, to in enumerate(receivers[step].tolist())]
            asked[step] = graph.add_block(
                ranks,
                device=back,
                latency_ns=delay_ns // 2,
                label=row._replace(kind=Kind.ASKING, rank=receivers[step]),
            )
        begin = self._turns(collective, iteration, sent)
        start = self._carried(collective, iteration, start)
        graph.depend_each(np.broadcast_to(start, sizes.shape), begin)
        graph.depend_each(start[receivers], asked)
        graph.depend_each(asked, begin)
        if collective.gathers:  # a rank passes on, and asks for, what follows what has come
            come = np.roll(sent[:-2], 1, axis=1)  # by receiver
            graph.depend_each(come, begin[2:])
            graph.depend_each(come, np.roll(asked[2:], 1, axis=1))
        graph.depend_each(sent, done[receivers])
        graph.depend_each(start, done)
        return sent

    def _carried(self, collective: _Collective, iteration: int, start: Int64Array) -> Int64Array:
        """Add what each rank computes to carry the messages of a collective, after ``start`` (W,).

        Returns the operations for which messages wait, (W,).
        """
        if not self.carries:
            return start
        messages = len(collective.message_bytes) // (2 if collective.gathers else 1)
        took_ns = self.job.cluster.costs.message_processor_ns * messages
        label = Label(Kind.CARRYING, iteration=iteration, tensor=self._label(collective.bucket))
        carried = np.concatenate(
            [
                self.cores.compute(1, took_ns, device, label._replace(rank=rank))
                for rank, device in enumerate(self.carries)
            ]
        )
        self.graph.depend_each(start, carried)
        return carried

    def _turns(self, collective: _Collective, iteration: int, message: Int64Array) -> Int64Array:
        """Add what each message waits for before a thread sends it: a core.

        Returns the waits, or the messages themselves if there is always a core.
        """
        if collective.queues is None:
            return message
        label = Label(
            Kind.LAG,
            np.arange(self.ranks),
            iteration=iteration,
            tensor=self._label(collective.bucket),
        )
        queues = np.broadcast_to(collective.queues, message.shape)
        turns = self.cores.turns(message.shape, queues, label)
        self.graph.depend_each(turns.ravel(), message.ravel())
        return turns

    def _update(self, rank: int, iteration: int) -> None:
        graph, blocks, at = self.graph, self.blocks, (rank, iteration)
        update_ns = int(self.job.times.update_ns[at].sum())
        update = self.cores.compute(
            1,
            update_ns,
            self.computes[rank],
            Label(Kind.UPDATE, rank, iteration=iteration),
        )
        end = blocks["update"][at]  # of backward
        graph.depend_each(end, update)
        graph.depend_each(blocks["done"][at], update)
        if self.job.times.waits_for_all:
            graph.depend_each(blocks["done"][at], end)
        blocks["update"][at] = update[0]
