"""What travels between workers and servers in a graph: pushes, sums, answers, acknowledgements.

- A partition's push passes its worker's policy (the gate), and is then a flow over the worker's and
  the server's link. It is acknowledged one delay after its arrival. A server's threads sum the
  pushes. When the pushes of all workers are summed, the server sends the sum to each worker as a
  flow. Each connection sends the most urgent sum first.
- Requests of pulls have no size. They are sent with the pushes, or queue behind them: one thread
  hands pushes to the transport as the policy releases them, and another one sends the request a
  moment later. So pushes handed over in between are ahead of the request.
- A server that has no core while workers compute (``Costs.standing_ns``) neither sums nor
  acknowledges what arrives.
- A server hands over answers only while few bytes of answers are in flight. A separate gate models
  this. Acknowledgements queue behind the answers that were handed over.
- "stock" has no gate: pushes are sent in the order in which they become ready. A pull is requested
  when its push has been acknowledged, and the request queues behind other pushes. Acknowledgements
  queue behind answers.

Operations are added in blocks per worker, so nothing here loops over partitions in Python.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from byteprophet.errors import UserError
from byteprophet.graph.builder import GraphBuilder
from byteprophet.graph.labels import Kind, Label
from byteprophet.graph.model import NONE, Int64Array
from byteprophet.graph.ps_devices import PsDevices
from byteprophet.graph.workers import Workers
from byteprophet.job import Job
from byteprophet.job.partitions import partitions_of_job
from byteprophet.schedulers import STOCK

_MOST_TRANSFERS = 1 << 21  # such a graph takes several gigabytes of memory
_OF_PARTITIONS = ("sent", "push", "acked", "request", "sum", "answered", "answer")


def _check_extent(job: Job, partitions: int) -> None:
    transfers = partitions * job.workers * job.iterations
    if transfers > _MOST_TRANSFERS:
        raise UserError(
            f"{job.iterations} iterations of {job.workers} workers have {transfers} transfers of "
            f"partitions, too many to be replayed (at most {_MOST_TRANSFERS}): record fewer "
            "iterations, with --record-steps, or use larger partitions"
        )


class PsTransfers:
    """Adds the transfers of a job's tensors, worker by worker and iteration by iteration.

    The times of the job are not used.

    Attributes:
        partitions: the partitions of the job.
        gates: the policy of each worker; none under "stock".
        blocks: the numbers of operations, by kind; shape (workers, iterations, partitions).
    """

    def __init__(
        self,
        job: Job,
        graph: GraphBuilder,
        workers: Workers,
        parameters: Sequence[Sequence[int]] = (),
        first_name: int = 0,
    ) -> None:
        """Add the devices.

        Args:
            job: a job with servers; its tensors are what is sent.
            graph: the graph to which everything is added.
            workers: its workers.
            parameters: the parameters that each tensor has gradients of; none: each has its own.
            first_name: the place of the first tensor in the graph's names.
        """
        self.job = job
        self.graph = graph
        self.stock = job.push_policy.name == STOCK
        self.partitions = parts = partitions_of_job(job)
        _check_extent(job, len(parts.size_bytes))
        self.cores = workers.cores
        self.devices = PsDevices(job, graph, workers)
        self.random = np.random.default_rng(0)  # fixed seed: the same job gives the same graph
        self.name = (first_name + parts.tensor).astype(np.int32)
        self.part = (np.arange(len(parts.tensor)) - parts.first[parts.tensor]).astype(np.int32)
        self.server = parts.server.astype(np.int16)
        held = list(parameters) or [(place,) for place in range(len(job.model))]
        counts = np.array([len(own) for own in held])
        # Each partition once for each parameter that waits for it.
        self.awaited = np.repeat(np.arange(len(parts.tensor)), counts[parts.tensor])
        self.waiting = np.array(
            [place for tensor in parts.tensor.tolist() for place in held[tensor]], np.int64
        )
        # A server that has no core has none for any worker.
        lasts_ns = job.cluster.costs.standing_ns or (0,)
        draw = np.random.default_rng(1)
        self.standing_ns = draw.choice(lasts_ns, job.iterations).tolist()
        shape = (job.workers, job.iterations, len(parts.size_bytes))
        self.blocks = {name: np.zeros(shape, np.int64) for name in _OF_PARTITIONS}

    @property
    def gates(self) -> Sequence[int]:
        """The policy of each worker; none under "stock"."""
        return self.devices.gates

    def _label(
        self, kind: Kind, worker: int, iteration: int, rows: slice | Int64Array = slice(None)
    ) -> Label:
        """Labels of what ``worker`` or a server does with all partitions, or with ``rows``."""
        server: npt.ArrayLike = self.server[rows]
        rank, peer = (server, worker) if kind.rank_is == "server" else (worker, server)
        return Label(kind, rank, peer, iteration, self.name[rows], self.part[rows])

    def push(self, worker: int, iteration: int, ready: Int64Array) -> None:
        """Add the pushes, their acknowledgements, and the sums.

        ``ready``: the operations at whose end each tensor is ready, shape (tensors,).
        """
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
        if self.gates and costs.request_lags_ns:
            sent, request = self._hand_over(worker, iteration, push)
        graph.depend_each(ready[parts.tensor], sent)
        add = graph.add_block(
            len(push),
            np.ceil(parts.size_bytes * costs.sum_ns_per_byte).astype(np.int64),
            device=self.devices.sums[parts.server, np.arange(len(push)) % costs.sum_threads],
            label=self._label(Kind.SUM, worker, iteration),
        )
        graph.depend_each(push, add)
        self._stand(worker, iteration, ready, add)
        if self.gates:
            acked = graph.add_block(
                len(push),
                device=self.devices.answers[worker, parts.server]
                if self.devices.windowed
                else NONE,
                latency_ns=costs.delay_ns + costs.ack_lag_ns,
                label=self._label(Kind.ACKNOWLEDGEMENT, worker, iteration),
            )
            graph.depend_each(push, acked)
            self._stand(worker, iteration, ready, acked)
            graph.guard_block(
                sent,
                self.gates[worker],
                key=parts.key,
                server=parts.server,
                priority=-1 - parts.tensor,
                acked_by=acked,
            )
            blocks["acked"][at] = acked
        blocks["sent"][at], blocks["push"][at] = sent, push
        blocks["request"][at], blocks["sum"][at] = request, add

    def _stand(self, worker: int, iteration: int, ready: Int64Array, done: Int64Array) -> None:
        """Make ``done``, one operation of the servers per push, wait until they get a core.

        They have none from when the iteration's first gradient is ready. The link goes on
        meanwhile, because the kernel receives for the server.
        """
        parts = self.partitions
        for server, device in enumerate(self.devices.standing[worker]):
            mine = np.flatnonzero(parts.server == server)
            if device is None or not len(mine):
                continue
            label = Label(Kind.STANDING, worker, server, iteration)
            wait = self.cores.turns((1,), device, label, self.standing_ns[iteration])
            first = ready[parts.tensor[mine]].min()  # backward's operations are numbered in order
            self.graph.depend_each(first, wait)
            self.graph.depend_each(wait, done[mine])

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

    def answer(self, worker: int, iteration: int) -> None:
        """Add the answers, which send the sums to ``worker``."""
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
        blocks["answered"][at], blocks["answer"][at] = answered, answer

    def complete(self, worker: int, iteration: int, update: Int64Array) -> None:
        """Make each update wait for the answers and acknowledgements of its parameter.

        ``update``: the updates of a worker in an iteration, shape (parameters,).
        """
        for name in ("answer", "acked"):
            there = self.blocks[name][worker, iteration]
            self.graph.depend_each(there[self.awaited], update[self.waiting])

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
