"""The graph of a parameter-server job: every layer, gradient, partition, sum and answer.

    iteration ─► forward of layer 0 ─► … ─► backward, tensor by tensor ─► next iteration
                   ▲                              │ ready
                update ◄── answers ◄── sums ◄── pushes (through the worker's gate)

- Each worker has one device that computes. A layer's forward waits for the update of its tensor in
  the previous iteration. A separate thread makes updates one after the other. An update waits until
  all partitions of its tensor have been pulled and their pushes acknowledged, because BytePS
  completes a partition only when it has received both, in any order.
- A partition's push passes its worker's policy (the gate), and is then a flow over the worker's and
  the server's link. It is acknowledged one delay after its arrival. A server's threads sum the
  pushes. When the pushes of all workers are summed, the server sends the sum to each worker as a
  flow. Each connection sends the most urgent sum first.
- Requests of pulls have no size. They are sent with the pushes, or queue behind them: one thread
  hands pushes to the transport as the policy releases them, and another one sends the request a
  moment later. So pushes handed over in between are ahead of the request.
- A server hands over answers only while few bytes of answers are in flight. A separate gate models
  this. Acknowledgements queue behind the answers that were handed over.
- "stock" has no gate: pushes are sent in the order in which they become ready. A pull is requested
  when its push has been acknowledged, and the request queues behind other pushes. Acknowledgements
  queue behind answers. Updates, and the next forward, wait for all answers.

Operations are added in blocks per worker, so nothing here loops over partitions in Python.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from byteprophet.errors import UserError
from byteprophet.graph.builder import GraphBuilder
from byteprophet.graph.labels import Kind, Label
from byteprophet.graph.model import NONE, Graph, Int64Array
from byteprophet.graph.ps_devices import PsDevices
from byteprophet.job import Job
from byteprophet.job.as_executed import as_executed
from byteprophet.job.partitions import Partitions, partitions_of_job
from byteprophet.schedulers import STOCK

_MOST_TRANSFERS = 1 << 21  # such a graph takes several gigabytes of memory
_OF_TENSORS = ("forward", "ready", "update")
_OF_PARTITIONS = ("sent", "push", "acked", "request", "sum", "answered", "answer")


@dataclass(frozen=True)
class PsGraph:
    """A job's graph, and arrays with the numbers of its operations.

    W, I and L are the numbers of workers, iterations and layers, as in ``Times``. P is the number
    of partitions. One operation may appear in several arrays.

    Attributes:
        graph: the graph.
        partitions: the partitions of the job.
        begin: the begin of iterations, shape (W, I).
        forward: the forward of layers, (W, I, L).
        backward: backward in the order of readiness, (W, I, L + 1). The last one is the rest of
            backward after the last gradient.
        ready: the operations of ``backward`` at whose end each gradient is ready, (W, I, L).
        update: the updates, (W, I, L).
        sent: the hand-over of pushes, which gates release, (W, I, P).
        push: the pushes, (W, I, P).
        acked: the acknowledgements of pushes, (W, I, P).
        request: the requests of pulls, (W, I, P).
        sum: the sums, (W, I, P).
        answered: the hand-over of answers, (W, I, P).
        answer: the answers, (W, I, P).
    """

    graph: Graph
    partitions: Partitions
    begin: Int64Array
    forward: Int64Array
    backward: Int64Array
    ready: Int64Array
    update: Int64Array
    sent: Int64Array
    push: Int64Array
    acked: Int64Array
    request: Int64Array
    sum: Int64Array
    answered: Int64Array
    answer: Int64Array


def build(job: Job) -> PsGraph:
    """Build the graph of ``job``. Raises ``UserError`` if the job is invalid or too large."""
    return _Build(as_executed(job)).run()


def _check_extent(job: Job, partitions: int) -> None:
    transfers = partitions * job.workers * job.iterations
    if transfers > _MOST_TRANSFERS:
        raise UserError(
            f"{job.iterations} iterations of {job.workers} workers have {transfers} transfers of "
            f"partitions, too many to be replayed (at most {_MOST_TRANSFERS}): record fewer "
            "iterations, with --record-steps, or use larger partitions"
        )


class _Build:
    """Builds one graph."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.stock = job.push_policy.name == STOCK
        self.partitions = partitions_of_job(job)
        _check_extent(job, len(self.partitions.size_bytes))
        self.graph = GraphBuilder(job.model.names)
        self.devices = PsDevices(job, self.graph)
        self.random = np.random.default_rng(0)  # fixed seed: the same job gives the same graph
        parts = self.partitions
        self.tensor = parts.tensor.astype(np.int32)
        self.part = (np.arange(len(parts.tensor)) - parts.first[parts.tensor]).astype(np.int32)
        self.server = parts.server.astype(np.int16)
        shape = (job.workers, job.iterations)
        tensors, partitions = len(job.model.sizes_bytes), len(self.partitions.size_bytes)
        self.blocks = {
            "begin": np.zeros(shape, np.int64),
            "backward": np.zeros((*shape, tensors + 1), np.int64),
            **{name: np.zeros((*shape, tensors), np.int64) for name in _OF_TENSORS},
            **{name: np.zeros((*shape, partitions), np.int64) for name in _OF_PARTITIONS},
        }

    def run(self) -> PsGraph:
        """Build the graph, one iteration after the other."""
        for iteration in range(self.job.iterations):
            for worker in range(self.job.workers):
                self._compute(worker, iteration)
                self._push(worker, iteration)
            for worker in range(self.job.workers):
                self._answer(worker, iteration)
        return PsGraph(self.graph.freeze(), self.partitions, **self.blocks)

    def _label(
        self, kind: Kind, worker: int, iteration: int, rows: slice | Int64Array = slice(None)
    ) -> Label:
        """Labels of what ``worker`` or a server does with all partitions, or with ``rows``."""
        server: npt.ArrayLike = self.server[rows]
        rank, peer = (server, worker) if kind.rank_is == "server" else (worker, server)
        return Label(kind, rank, peer, iteration, self.tensor[rows], self.part[rows])

    def _compute(self, worker: int, iteration: int) -> None:
        """Add forward and backward, which wait for the updates of the previous iteration."""
        graph, blocks, times = self.graph, self.blocks, self.job.times
        device, at = self.devices.computes[worker], (worker, iteration)
        whose = Label(rank=worker, iteration=iteration)
        tensors = np.arange(blocks["forward"].shape[2], dtype=np.int32)
        begin = graph.add_block(1, label=whose._replace(kind=Kind.ITERATION))
        forward = graph.add_block(
            len(tensors),
            times.forward_ns[at],
            device=device,
            label=whose._replace(kind=Kind.FORWARD, tensor=tensors),
        )
        graph.chain(np.concatenate([begin, forward]))
        if self.devices.gates:
            graph.mark_iteration(int(begin[0]), self.devices.gates[worker])
        if iteration:
            before = (worker, iteration - 1)
            graph.depend_each(blocks["backward"][before][-1:], begin)
            if self.stock:
                graph.depend_each(blocks["update"][before], forward[0])
            else:
                graph.depend_each(blocks["update"][before], forward)
        # Gradients that are ready at the same time come in reverse forward order, as in backward.
        ready_ns = times.ready_ns[at]
        order = np.lexsort((-tensors, ready_ns))
        ends_ns = np.append(ready_ns[order], max(times.backward_ns[at], ready_ns.max()))
        backward = graph.add_block(
            len(ends_ns),
            np.diff(ends_ns, prepend=0),
            device=device,
            label=whose._replace(kind=Kind.BACKWARD, tensor=np.append(order, NONE)),
        )
        graph.chain(np.concatenate([forward[-1:], backward]))
        blocks["begin"][at], blocks["forward"][at], blocks["backward"][at] = (
            begin[0],
            forward,
            backward,
        )
        blocks["ready"][at][order] = backward[:-1]

    def _push(self, worker: int, iteration: int) -> None:
        """Add the pushes, their acknowledgements, and the sums."""
        graph, blocks, parts, costs = (
            self.graph,
            self.blocks,
            self.partitions,
            self.job.cluster.costs,
        )
        at, connections = (worker, iteration), self.devices.pushes[worker, parts.server]
        push = graph.add_block(
            len(parts.size_bytes),
            costs.message_cost_ns,
            device=connections,
            size_bytes=parts.size_bytes,
            latency_ns=costs.delay_ns,
            label=self._label(Kind.PUSH, worker, iteration),
        )
        sent, request = push, push
        if self.devices.gates and costs.request_lags_ns:
            sent, request = self._hand_over(worker, iteration, push)
        graph.depend_each(blocks["ready"][at][parts.tensor], sent)
        add = graph.add_block(
            len(push),
            np.ceil(parts.size_bytes * costs.sum_ns_per_byte).astype(np.int64),
            device=self.devices.sums[parts.server, np.arange(len(push)) % costs.sum_threads],
            label=self._label(Kind.SUM, worker, iteration),
        )
        graph.depend_each(push, add)
        if self.devices.gates:
            acked = graph.add_block(
                len(push),
                device=self.devices.answers[worker, parts.server]
                if self.devices.windowed
                else NONE,
                latency_ns=costs.delay_ns + costs.ack_lag_ns,
                label=self._label(Kind.ACKNOWLEDGEMENT, worker, iteration),
            )
            graph.depend_each(push, acked)
            graph.guard_block(
                sent,
                self.devices.gates[worker],
                key=parts.key,
                server=parts.server,
                priority=-1 - parts.tensor,
                acked_by=acked,
            )
            blocks["acked"][at] = acked
        blocks["sent"][at], blocks["push"][at] = sent, push
        blocks["request"][at], blocks["sum"][at] = request, add

    def _hand_over(
        self, worker: int, iteration: int, push: Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        """Add the hand-over of ``push`` to the transport, and the requests of their pulls.

        Returns the numbers of both.
        """
        graph, parts, costs = self.graph, self.partitions, self.job.cluster.costs
        sent = graph.add_block(
            len(push),
            costs.hand_over_ns,
            device=self.devices.senders[worker],
            size_bytes=parts.size_bytes,
            label=self._label(Kind.HAND_OVER, worker, iteration),
        )
        lag = graph.add_block(
            len(push),
            self.random.choice(costs.request_lags_ns, len(push)),
            label=self._label(Kind.LAG, worker, iteration),
        )
        request = self._request(worker, iteration)
        graph.depend_each(sent, push)
        graph.depend_each(sent, lag)
        graph.depend_each(lag, request)
        return sent, request

    def _request(self, worker: int, iteration: int) -> Int64Array:
        """Add the requests of the pulls, which use the connections of the pushes."""
        return self.graph.add_block(
            len(self.server),
            device=self.devices.pushes[worker, self.server],
            latency_ns=self.job.cluster.costs.delay_ns,
            label=self._label(Kind.REQUEST, worker, iteration),
        )

    def _answer(self, worker: int, iteration: int) -> None:
        """Add the answers, which send the sums to ``worker``, and the updates."""
        graph, blocks, parts, costs = (
            self.graph,
            self.blocks,
            self.partitions,
            self.job.cluster.costs,
        )
        at = worker, iteration
        connections = self.devices.answers[worker, parts.server]
        most_bytes = (
            self.devices.windows[worker] if self.devices.windowed else parts.size_bytes.max()
        )
        answer = graph.add_block(
            len(parts.size_bytes),
            costs.message_cost_ns + costs.answer_cost_ns,
            device=connections,
            size_bytes=np.minimum(parts.size_bytes, most_bytes),
            latency_ns=costs.delay_ns,
            priority=-parts.tensor,
            label=self._label(Kind.ANSWER, worker, iteration),
        )
        answered = answer
        if self.devices.windowed:
            answered = self._hand_over_answers(worker, iteration, answer)
        for sums in blocks["sum"][:, iteration]:
            graph.depend_each(sums, answered)
        graph.depend_each(blocks["request"][at], answered)
        if self.stock:
            pushes = blocks["push"][at]
            acked = graph.add_block(
                len(answer),
                device=connections,
                latency_ns=costs.delay_ns,
                label=self._label(Kind.ACKNOWLEDGEMENT, worker, iteration),
            )
            asked = self._request(worker, iteration)
            graph.depend_each(pushes, acked)
            graph.depend_each(acked, asked)
            graph.depend_each(asked, answer)
            blocks["acked"][at] = acked
        whose = Label(rank=worker, iteration=iteration)
        tensors = np.arange(blocks["update"].shape[2], dtype=np.int32)
        update = graph.add_block(
            len(tensors),
            self.job.times.update_ns[at],
            device=self.devices.updates[worker],
            label=whose._replace(kind=Kind.UPDATE, tensor=tensors),
        )
        if self.stock:
            barrier = graph.add_block(1, label=whose._replace(kind=Kind.BARRIER))
            graph.depend_each(answer, barrier)
            graph.depend_each(barrier, update)
        else:
            graph.depend_each(answer, update[parts.tensor])
            graph.depend_each(blocks["acked"][at], update[parts.tensor])
        blocks["answered"][at] = answered
        blocks["answer"][at], blocks["update"][at] = answer, update

    def _hand_over_answers(self, worker: int, iteration: int, answer: Int64Array) -> Int64Array:
        """Add the hand-over of ``answer`` to the transport, and return its operations.

        If an answer is larger than the window, its bytes in flight fall below the window before it
        has arrived completely. So it is divided into two flows, of which the second has the size of
        the window. The next answer may be handed over when the first flow has ended.
        """
        graph, parts, window = self.graph, self.partitions, self.devices.windows[worker]
        connections = self.devices.answers[worker, parts.server]
        answered = graph.add_block(
            len(answer),
            size_bytes=parts.size_bytes,
            label=self._label(Kind.ANSWER_HAND_OVER, worker, iteration),
        )
        large = np.flatnonzero(parts.size_bytes > window)
        first = graph.add_block(
            len(large),
            device=connections[large],
            size_bytes=parts.size_bytes[large] - window,
            label=self._label(Kind.ANSWER_HEAD, worker, iteration, large),
        )
        graph.depend_each(answered, answer)
        graph.depend_each(answered[large], first)
        graph.depend_each(first, answer[large])
        leaves_room = answer.copy()
        leaves_room[large] = first
        for server, gate in enumerate(self.devices.answer_gates[worker]):
            mine = parts.server == server
            graph.guard_block(
                answered[mine],
                gate,
                key=parts.key[mine],
                server=0,
                priority=-1 - parts.tensor[mine],
                acked_by=leaves_room[mine],
            )
        return answered
