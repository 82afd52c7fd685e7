"""What every worker of a job has, whatever carries its gradients: a link, and what it computes.

A worker has one device that computes, and a thread that makes updates, the most urgent first. The
graphs of jobs with servers, without, and with both, add their transfers between these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from byteprophet.graph.builder import GraphBuilder
from byteprophet.graph.cores import Cores
from byteprophet.graph.labels import Kind, Label
from byteprophet.graph.model import NONE, Int64Array
from byteprophet.job import Host, Job


class Computed(NamedTuple):
    """The operations of one iteration of a worker. P is the number of parameters.

    ``begin``: its begin. ``forward``: of layers, shape (P,). ``backward``: in the order of
    readiness, (P + 1,); the last one is the rest of backward after the last gradient. ``ready``:
    those of ``backward`` at whose end each gradient is ready, (P,).
    """

    begin: int
    forward: Int64Array
    backward: Int64Array
    ready: Int64Array

    @property
    def step(self) -> int:
        """The operation at whose end ``step()`` is called."""
        return int(self.backward[-2])

    @property
    def end(self) -> int:
        """The last operation."""
        return int(self.backward[-1])


class Workers:
    """Adds workers to a graph.

    Attributes:
        up: the sending direction of links, by worker.
        down: the receiving direction, by worker.
        computes: the device that computes, by worker.
        updates: the thread that updates, by worker.
        cores: what these have in common.
    """

    def __init__(self, job: Job, hosts: Sequence[Host], graph: GraphBuilder) -> None:
        """``hosts``: the workers' links, which may be slower than in the cluster of ``job``."""
        self._job = job
        self._graph = graph
        self._parameters = np.arange(len(job.model))
        self.up = [
            graph.link(f"worker {w} up", host.up_bps or None, host.burst_bytes)
            for w, host in enumerate(hosts)
        ]
        self.down = [
            graph.link(f"worker {w} down", host.down_bps or None, host.burst_bytes)
            for w, host in enumerate(hosts)
        ]
        self.cores = Cores(job.cluster, graph)
        self.computes = [self.cores.thread(f"worker {w} computes", w) for w in range(len(hosts))]
        self.updates = [
            self.cores.thread(f"worker {w} updates", w, by_priority=True) for w in range(len(hosts))
        ]

    def compute(self, worker: int, iteration: int) -> Computed:
        """Add forward and backward of an iteration, one operation after the other.

        Gradients that are ready at the same time come in reverse forward order, as in backward.
        """
        graph, times = self._graph, self._job.times
        device, at = self.computes[worker], (worker, iteration)
        whose = Label(rank=worker, iteration=iteration)
        begin = graph.add_block(1, label=whose._replace(kind=Kind.ITERATION))
        forward = self.cores.compute(
            len(self._parameters),
            times.forward_ns[at],
            device,
            whose._replace(kind=Kind.FORWARD, tensor=self._parameters),
        )
        graph.chain(np.concatenate([begin, forward]))
        ready_ns = times.ready_ns[at]
        order = np.lexsort((-self._parameters, ready_ns))
        ends_ns = np.append(ready_ns[order], max(times.backward_ns[at], ready_ns.max()))
        backward = self.cores.compute(
            len(ends_ns),
            np.diff(ends_ns, prepend=0),
            device,
            whose._replace(kind=Kind.BACKWARD, tensor=np.append(order, NONE)),
        )
        graph.chain(np.concatenate([forward[-1:], backward]))
        ready: Int64Array = np.empty(len(order), np.int64)
        ready[order] = backward[:-1]
        return Computed(int(begin[0]), forward, backward, ready)

    def wait_for_all(
        self, worker: int, iteration: int, arrived: Int64Array, waiting: Int64Array
    ) -> None:
        """Make all of ``waiting`` wait for all of ``arrived``, by one operation between them."""
        (barrier,) = self._graph.add_block(
            1, label=Label(Kind.BARRIER, rank=worker, iteration=iteration)
        )
        self._graph.depend_each(arrived, barrier)
        self._graph.depend_each(barrier, waiting)

    def update(self, worker: int, iteration: int) -> Int64Array:
        """Add the updates of all parameters, shape (P,). The most urgent ones go first."""
        return self.cores.compute(
            len(self._parameters),
            self._job.times.update_ns[worker, iteration],
            self.updates[worker],
            Label(Kind.UPDATE, rank=worker, iteration=iteration, tensor=self._parameters),
            -(iteration * len(self._parameters) + self._parameters),
        )
