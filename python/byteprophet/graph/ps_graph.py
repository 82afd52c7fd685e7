"""The graph of a parameter-server job: every layer, gradient, partition, sum and answer.

    iteration ─► forward of layer 0 ─► … ─► backward, tensor by tensor ─► next iteration
                   ▲                              │ ready
                update ◄── answers ◄── sums ◄── pushes (through the worker's gate)

- Each worker has one device that computes; a layer's forward waits for the updates of its tensor of
  the iteration before. Updates are made one after the other, in a thread of their own.
- A partition's push passes its worker's policy (the gate), is a flow over the worker's and the
  server's link, and is acknowledged one delay after it arrived. A server's threads add pushes up;
  when all workers' are, the sum travels back to each as a flow, the most urgent of a connection
  first. Requests of pulls have no size. They travel with the pushes, or in line with them: a
  thread hands over what the policy lets go, another requests a moment later, and what the first
  has handed over meanwhile is in front of the request. So do answers, which a server hands over
  as long as little is on its way (a gate of its own), and acknowledgements, which stand behind
  them.
- "stock" has no gate: pushes leave as they come; a pull is requested when its push has been
  acknowledged, behind other pushes; acknowledgements travel behind answers; updates, and the next
  forward, wait for all.

Operations are numbered worker by worker in blocks, so that arrays stay arrays: nothing here loops
over partitions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from byteprophet.engine.layout import Partitions, partitions_of
from byteprophet.graph.builder import GraphBuilder
from byteprophet.graph.model import NONE, Graph, Int64Array
from byteprophet.graph.ps_devices import PsDevices
from byteprophet.graph.ps_job import PsJob
from byteprophet.schedulers import STOCK

_OF_TENSORS = ("forward", "ready", "update")
_OF_PARTITIONS = ("sent", "push", "request", "sum", "answered", "answer")


@dataclass(frozen=True)
class PsGraph:
    """A job's graph, and which operation is what. W, I, L as in ``PsJob``; P partitions.

    ``begin`` (W, I): iterations. ``forward``, ``update`` (W, I, L). ``backward`` (W, I, L + 1): in
    order of readiness, behind the last gradient what remains. ``ready`` (W, I, L): those of
    ``backward`` at whose ends gradients are ready. ``sent`` (handed over: what gates let go),
    ``push``, ``request`` (of the pull), ``sum``, ``answered`` (handed over), ``answer`` (W, I, P);
    one operation may be several.
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
    request: Int64Array
    sum: Int64Array
    answered: Int64Array
    answer: Int64Array


def build(job: PsJob) -> PsGraph:
    """The graph of ``job``; UserError where the job makes no sense."""
    return _Build(job).run()


class _Build:
    """One graph in the making."""

    def __init__(self, job: PsJob) -> None:
        self.job = job
        self.stock = job.scheduler == STOCK
        self.partitions = partitions_of(
            job.size_bytes, job.partition_bytes, job.servers, job.numbers
        )
        self.graph = GraphBuilder()
        self.devices = PsDevices(job, self.graph)
        self.random = np.random.default_rng(0)  # the same graph whenever it is built
        shape = (job.workers, job.iterations)
        tensors, partitions = len(job.size_bytes), len(self.partitions.size_bytes)
        self.blocks = {
            "begin": np.zeros(shape, np.int64),
            "backward": np.zeros((*shape, tensors + 1), np.int64),
            **{name: np.zeros((*shape, tensors), np.int64) for name in _OF_TENSORS},
            **{name: np.zeros((*shape, partitions), np.int64) for name in _OF_PARTITIONS},
        }

    def run(self) -> PsGraph:
        """Iteration after iteration; sums need all workers' pushes."""
        for iteration in range(self.job.iterations):
            for worker in range(self.job.workers):
                self._compute(worker, iteration)
                self._push(worker, iteration)
            for worker in range(self.job.workers):
                self._answer(worker, iteration)
        return PsGraph(self.graph.freeze(), self.partitions, **self.blocks)

    def _compute(self, worker: int, iteration: int) -> None:
        """Forward and backward, after the updates of the iteration before."""
        graph, blocks, compute = self.graph, self.blocks, self.job.compute
        device, at = self.devices.computes[worker], (worker, iteration)
        begin = graph.add_block(1)
        forward = graph.add_block(blocks["forward"].shape[2], compute.forward_ns[at], device=device)
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
        # What is ready at one time: the last in forward order first, as backward goes.
        ready_ns = compute.ready_ns[at]
        order = np.lexsort((-np.arange(len(ready_ns)), ready_ns))
        ends_ns = np.append(ready_ns[order], max(compute.backward_ns[at], ready_ns.max()))
        backward = graph.add_block(len(ends_ns), np.diff(ends_ns, prepend=0), device=device)
        graph.chain(np.concatenate([forward[-1:], backward]))
        blocks["begin"][at], blocks["forward"][at], blocks["backward"][at] = (
            begin[0],
            forward,
            backward,
        )
        blocks["ready"][at][order] = backward[:-1]

    def _push(self, worker: int, iteration: int) -> None:
        """Pushes, their acknowledgements, and what the server does with them."""
        graph, blocks, parts, network = self.graph, self.blocks, self.partitions, self.job.network
        at, connections = (worker, iteration), self.devices.pushes[worker, parts.server]
        push = graph.add_block(
            len(parts.size_bytes),
            network.message_cost_ns,
            device=connections,
            size_bytes=parts.size_bytes,
            latency_ns=network.delay_ns,
        )
        sent, request = push, push
        if self.devices.gates and network.request_lags_ns:
            sent, request = self._hand_over(worker, push)
        graph.depend_each(blocks["ready"][at][parts.tensor], sent)
        add = graph.add_block(
            len(push),
            np.ceil(parts.size_bytes * network.sum_ns_per_byte).astype(np.int64),
            device=self.devices.sums[parts.server, np.arange(len(push)) % network.sum_threads],
        )
        graph.depend_each(push, add)
        if self.devices.gates:
            acked = graph.add_block(
                len(push),
                device=self.devices.answers[worker, parts.server]
                if self.devices.windowed
                else NONE,
                latency_ns=network.delay_ns + network.ack_lag_ns,
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
        blocks["sent"][at], blocks["push"][at] = sent, push
        blocks["request"][at], blocks["sum"][at] = request, add

    def _hand_over(self, worker: int, push: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Operations at whose ends ``push`` are handed over, and the requests of their pulls."""
        graph, parts, network = self.graph, self.partitions, self.job.network
        sent = graph.add_block(
            len(push),
            network.hand_over_ns,
            device=self.devices.senders[worker],
            size_bytes=parts.size_bytes,
        )
        lag = graph.add_block(len(push), self.random.choice(network.request_lags_ns, len(push)))
        request = graph.add_block(
            len(push), device=self.devices.pushes[worker, parts.server], latency_ns=network.delay_ns
        )
        graph.depend_each(sent, push)
        graph.depend_each(sent, lag)
        graph.depend_each(lag, request)
        return sent, request

    def _answer(self, worker: int, iteration: int) -> None:
        """The sums' way back, and the updates."""
        graph, blocks, parts, network = self.graph, self.blocks, self.partitions, self.job.network
        at = worker, iteration
        connections = self.devices.answers[worker, parts.server]
        most_bytes = (
            self.devices.windows[worker] if self.devices.windowed else parts.size_bytes.max()
        )
        answer = graph.add_block(
            len(parts.size_bytes),
            network.message_cost_ns,
            device=connections,
            size_bytes=np.minimum(parts.size_bytes, most_bytes),
            latency_ns=network.delay_ns,
            priority=-parts.tensor,
        )
        answered = self._hand_over_answers(worker, answer) if self.devices.windowed else answer
        for sums in blocks["sum"][:, iteration]:
            graph.depend_each(sums, answered)
        graph.depend_each(blocks["request"][at], answered)
        if self.stock:
            pushes = blocks["push"][at]
            acked = graph.add_block(len(answer), device=connections, latency_ns=network.delay_ns)
            asked = graph.add_block(
                len(answer),
                device=self.devices.pushes[worker, parts.server],
                latency_ns=network.delay_ns,
            )
            graph.depend_each(pushes, acked)
            graph.depend_each(acked, asked)
            graph.depend_each(asked, answer)
        update = graph.add_block(
            blocks["update"].shape[2],
            self.job.compute.update_ns[at],
            device=self.devices.updates[worker],
        )
        if self.stock:
            graph.depend_each(answer, barrier := graph.add_block(1))
            graph.depend_each(barrier, update)
        else:
            graph.depend_each(answer, update[parts.tensor])
        blocks["answered"][at] = answered
        blocks["answer"][at], blocks["update"][at] = answer, update

    def _hand_over_answers(self, worker: int, answer: Int64Array) -> Int64Array:
        """Operations at whose ends ``answer`` are handed over.

        What a large one has on its way falls below the window before it is there. So its bytes are
        two flows, the second as large as the window, and the next may go when the first has ended.
        """
        graph, parts, window = self.graph, self.partitions, self.devices.windows[worker]
        connections = self.devices.answers[worker, parts.server]
        answered = graph.add_block(len(answer), size_bytes=parts.size_bytes)
        large = np.flatnonzero(parts.size_bytes > window)
        first = graph.add_block(
            len(large), device=connections[large], size_bytes=parts.size_bytes[large] - window
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
