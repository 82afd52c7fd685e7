"""The links, connections, threads and gates on which a parameter-server job's operations run.

They are referred to by the numbers of the graph's devices and gates.
"""

from __future__ import annotations

import numpy as np

from byteprophet.graph.builder import GraphBuilder
from byteprophet.graph.cores import Path
from byteprophet.graph.model import WHOLE
from byteprophet.graph.workers import Workers
from byteprophet.job import Job
from byteprophet.job.agreed_order import agreed_policy
from byteprophet.schedulers import PARTITION, STOCK

_SLACK_NS = 1_000_000  # from native/byteps/answers/flow.h


class PsDevices:
    """Adds the devices of a job to a graph that has its workers.

    Attributes:
        senders: the thread that hands pushes to the transport, by worker.
        gates: the policy, by worker; empty under "stock".
        windows: how many bytes of answers may be in flight, by worker.
        pushes: the connections of pushes, by worker, then server.
        answers: the connections of answers, by worker, then server.
        windowed: whether answers in flight are limited.
        answer_gates: the gates of answers, by worker, then server; empty if not ``windowed``.
        sums: the threads that sum, by server, then thread.
        standing: where a worker's pushes wait until a server gets a core, by worker, then server;
            None where it has one.
    """

    def __init__(self, job: Job, graph: GraphBuilder, own: Workers) -> None:
        self._graph = graph
        stock = job.push_policy.name == STOCK
        costs, add = job.cluster.costs, graph
        hosts, served = job.cluster.workers, job.cluster.servers
        workers, servers = range(job.workers), range(job.servers)
        out = [
            add.link(f"server {s} up", host.up_bps or None, host.burst_bytes)
            for s, host in enumerate(served)
        ]
        into = [
            add.link(f"server {s} down", host.down_bps or None, host.burst_bytes)
            for s, host in enumerate(served)
        ]
        self.senders = [add.serial(f"worker {w} hands over") for w in workers]
        # By worker, then server.
        self.pushes = np.array(
            [
                [self._connection(own.up[w], into[s], own.cores.push(w, s)) for s in servers]
                for w in workers
            ],
            np.int32,
        )
        # The most urgent answer goes first, except in BytePS as shipped. Either a gate decides
        # this, or the connection.
        self.windowed = not stock and costs.answers_bytes > 0
        first = not stock and not self.windowed
        self.answers = np.array(
            [
                [
                    self._connection(out[s], own.down[w], own.cores.answer(s, w), first)
                    for s in servers
                ]
                for w in workers
            ],
            np.int32,
        )
        self.sums = np.array(
            [
                [add.serial(f"server {s} sums {n}") for n in range(costs.sum_threads)]
                for s in servers
            ],
            np.int32,
        )
        self.standing = [
            [own.cores.standing(w, s) if costs.standing_ns else None for s in servers]
            for w in workers
        ]
        self.gates = []
        if not stock:
            policy = agreed_policy(job)
            self.gates = [
                add.gate(f"worker {w}", policy.name, policy.settings, policy.ready_times)
                for w in workers
            ]
        self.windows = [
            costs.answers_bytes + host.down_bps * _SLACK_NS // 8 // 10**9 for host in hosts
        ]
        self.answer_gates = [
            [
                self._answer_gate(job, f"answers of server {s} to worker {w}", window)
                for s in servers
            ]
            for w, window in enumerate(self.windows)
            if self.windowed
        ]

    def _connection(self, first: int, second: int, path: Path, by_priority: bool = False) -> int:
        return self._graph.connection(
            f"over link {first} and link {second}",
            (first, second, *path.links),
            by_priority=by_priority,
            cost_on_first_link=True,
            weights=(WHOLE, WHOLE, *path.weights) if path.links else (),
        )

    def _answer_gate(self, job: Job, name: str, window_bytes: int) -> int:
        """Add a gate that passes answers, most urgent first, up to ``window_bytes`` in flight."""
        settings = {PARTITION: job.strategy.partition_bytes, "credit_bytes": window_bytes}
        return self._graph.gate(name, "bytescheduler", settings)
