"""The graph of a parameter-server job: every layer, gradient, partition, sum and answer.

    iteration ─► forward of layer 0 ─► … ─► backward, tensor by tensor ─► next iteration
                   ▲                              │ ready
                update ◄── answers ◄── sums ◄── pushes (through the worker's gate)

- Each worker has one device that computes. A layer's forward waits for the update of its tensor in
  the previous iteration. A separate thread makes updates one after the other. An update waits until
  all partitions of its tensor have been pulled and their pushes acknowledged, because BytePS
  completes a partition only when it has received both, in any order.
- What happens in between, ``ps_transfers.py`` says.
- "stock": updates, and the next forward, wait for all answers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from byteprophet.graph.builder import GraphBuilder
from byteprophet.graph.model import Graph, Int64Array
from byteprophet.graph.ps_transfers import PsTransfers
from byteprophet.graph.workers import Workers
from byteprophet.job import Job
from byteprophet.job.as_executed import as_executed
from byteprophet.job.partitions import Partitions

_OF_TENSORS = ("forward", "ready", "update")


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


class _Build:
    """Builds one graph."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.graph = GraphBuilder(job.model.names)
        self.workers = Workers(job, job.cluster.workers, self.graph)
        self.transfers = PsTransfers(job, self.graph, self.workers)
        shape, tensors = (job.workers, job.iterations), len(job.model.sizes_bytes)
        self.blocks = {
            "begin": np.zeros(shape, np.int64),
            "backward": np.zeros((*shape, tensors + 1), np.int64),
            **{name: np.zeros((*shape, tensors), np.int64) for name in _OF_TENSORS},
        }

    def run(self) -> PsGraph:
        """Build the graph, one iteration after the other."""
        transfers = self.transfers
        for iteration in range(self.job.iterations):
            for worker in range(self.job.workers):
                self._compute(worker, iteration)
                transfers.push(worker, iteration, self.blocks["ready"][worker, iteration])
            for worker in range(self.job.workers):
                transfers.answer(worker, iteration)
                self._update(worker, iteration)
        blocks = {**self.blocks, **transfers.blocks}
        return PsGraph(self.graph.freeze(), transfers.partitions, **blocks)

    def _compute(self, worker: int, iteration: int) -> None:
        """Add forward and backward, which wait for the updates of the previous iteration."""
        graph, blocks, at = self.graph, self.blocks, (worker, iteration)
        computed = self.workers.compute(worker, iteration)
        if self.transfers.gates:
            graph.mark_iteration(computed.begin, self.transfers.gates[worker])
        if iteration:
            before = (worker, iteration - 1)
            graph.depend_each(blocks["backward"][before][-1:], computed.begin)
            waits = computed.forward[0] if self.transfers.stock else computed.forward
            graph.depend_each(blocks["update"][before], waits)
        blocks["begin"][at], blocks["forward"][at] = computed.begin, computed.forward
        blocks["backward"][at], blocks["ready"][at] = computed.backward, computed.ready

    def _update(self, worker: int, iteration: int) -> None:
        """Add the updates, which wait for what was pulled."""
        update = self.workers.update(worker, iteration)
        answers = self.transfers.blocks["answer"][worker, iteration]
        if self.transfers.stock:
            self.workers.wait_for_all(worker, iteration, answers, update)
        else:
            self.transfers.complete(worker, iteration, update)
            if self.job.times.waits_for_all:
                waiting = np.append(update, self.blocks["backward"][worker, iteration][-1])
                self.workers.wait_for_all(worker, iteration, answers, waiting)
        self.blocks["update"][worker, iteration] = update
