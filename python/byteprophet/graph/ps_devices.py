"""What the operations of a parameter-server job run on: links, connections, threads, gates.

Numbers are those of the graph's devices and gates.
"""

from __future__ import annotations

import numpy as np

from byteprophet.graph.builder import GraphBuilder
from byteprophet.graph.ps_job import PsJob
from byteprophet.schedulers import PARTITION, STOCK

_SLACK_NS = 1_000_000  # of native/byteps/answers/flow.h


class PsDevices:
    """Adds them to a graph.

    ``computes``, ``updates``, ``senders``, ``gates`` (none under "stock"), ``windows`` (bytes of
    answers on their way): by worker. ``pushes``, ``answers`` (connections), ``answer_gates`` (none
    if not ``windowed``): by worker, then server. ``sums``: by server, then thread.
    """

    def __init__(self, job: PsJob, graph: GraphBuilder) -> None:
        self._graph = graph
        stock = job.scheduler == STOCK
        network, add = job.network, graph
        workers, servers = range(job.workers), range(job.servers)
        burst, up_bps = network.burst_bytes, network.worker_bps
        down_bps = network.down_bps or up_bps
        up = [add.link(f"worker {w} up", up_bps[w] or None, burst) for w in workers]
        down = [add.link(f"worker {w} down", down_bps[w] or None, burst) for w in workers]
        out = [add.link(f"server {s} up", network.server_bps[s] or None) for s in servers]
        into = [add.link(f"server {s} down", network.server_bps[s] or None) for s in servers]
        self.computes = [add.serial(f"worker {w} computes") for w in workers]
        self.updates = [add.serial(f"worker {w} updates") for w in workers]
        self.senders = [add.serial(f"worker {w} hands over") for w in workers]
        # By worker, then server.
        self.pushes = np.array(
            [[self._connection(up[w], into[s]) for s in servers] for w in workers]
        )
        # What is urgent goes first, but in BytePS as shipped; by gates, or by the connection.
        self.windowed = not stock and network.answers_bytes > 0
        first = not stock and not self.windowed
        self.answers = np.array(
            [[self._connection(out[s], down[w], first) for s in servers] for w in workers]
        )
        self.sums = np.array(
            [
                [add.serial(f"server {s} sums {n}") for n in range(network.sum_threads)]
                for s in servers
            ]
        )
        self.gates = []
        if not stock:
            self.gates = [
                add.gate(f"worker {w}", job.scheduler, job.settings, job.ready_times)
                for w in workers
            ]
        self.windows = [network.answers_bytes + rate * _SLACK_NS // 8 // 10**9 for rate in down_bps]
        self.answer_gates = [
            [
                self._answer_gate(job, f"answers of server {s} to worker {w}", window)
                for s in servers
            ]
            for w, window in enumerate(self.windows)
            if self.windowed
        ]

    def _connection(self, first: int, second: int, by_priority: bool = False) -> int:
        return self._graph.connection(
            f"over link {first} and link {second}",
            (first, second),
            by_priority=by_priority,
            cost_on_first_link=True,
        )

    def _answer_gate(self, job: PsJob, name: str, window_bytes: int) -> int:
        """Hands over, most urgent first, while less than that is on its way."""
        settings = {PARTITION: job.partition_bytes, "credit_bytes": window_bytes}
        return self._graph.gate(name, "bytescheduler", settings)
