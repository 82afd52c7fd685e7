"""The cores that workers share, in a graph: what computes gets a part of them, as messages do.

Cores are links, and processor time is what passes over them: a byte stands for ``unit`` ns of it.
So computing is a flow over two links, the one core that a thread can use and all cores of its
machine, and the engine shares these max-min fairly, as a kernel's scheduler shares cores among
threads. A message needs processor time at both ends, so its bytes also pass, by a weight, what the
two machines have, and the threads that send and receive them.

Fairness is among flows, by their rates. The unit is chosen so that at equal rates a message costs
each of the threads at its ends as much as one computing thread gets, divided by the messages that
such a thread has at the same time: one for each other rank. A message that its link limits to less
takes only what it needs, and the rest is left to those that compute: the kernel prefers threads
that mostly sleep, too.

A thread that wakes up on a machine with more ranks than cores waits until the threads that compute
have had their turn (``Costs.turn_ns``). This wait is a flow, too: next to nothing of a core passes,
and its rate is that of the threads which compute. If these leave any core unused, it is over at
once. So the smaller a thread's part of the cores, the longer others wait.

Where the cluster has no ``processors``, a thread is a serial device, and messages need their links
alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from byteprophet.graph.builder import GraphBuilder
from byteprophet.graph.labels import Label
from byteprophet.graph.model import WHOLE, Int64Array
from byteprophet.job import Cluster

CORE_BPS = 8_000_000_000
"""What a core is as a link: one ns of processor time, which stands as one byte, in one ns."""

_LEAST_UNIT, _MOST_UNIT = 1 / 16, 64.0
_WAITING = WHOLE // 1000
"""What waits for a core uses next to nothing of it."""


class Path(NamedTuple):
    """Links that a message also crosses, and its weight on each, in parts of ``WHOLE``."""

    links: tuple[int, ...]
    weights: tuple[int, ...]


class _End(NamedTuple):
    """The links of one end of messages: the threads that send and receive, and the machine."""

    sends: int
    receives: int
    machine: int


class Cores:
    """The cores of a cluster's machines, and threads on them. ``shared``: there are any."""

    def __init__(self, cluster: Cluster, graph: GraphBuilder) -> None:
        self._graph = graph
        self.shared = bool(cluster.processors)
        # The link that stands for the cores, by worker and by server.
        self._machine: dict[int, int] = {}
        self._of_server: dict[int, int] = {}
        for number, each in enumerate(cluster.processors):
            link = graph.link(f"cores of machine {number}", round(each.cores * CORE_BPS))
            self._machine.update(dict.fromkeys(each.workers, link))
            self._of_server.update(dict.fromkeys(each.servers, link))
        self._ns_per_byte = cluster.costs.processor_ns_per_byte if self.shared else 0.0
        others = len(cluster.servers) or max(1, len(cluster.workers) - 1)
        unit = self._ns_per_byte / 2 * others or 1.0
        self._unit_ns = min(_MOST_UNIT, max(_LEAST_UNIT, unit))
        self._turn_ns = cluster.costs.turn_ns
        self._crowded = {
            worker
            for each in cluster.processors
            for worker in each.workers
            if len(each.workers) > each.cores
        }
        self._workers: list[_End] = []
        self._servers: list[_End | None] = []
        if self._ns_per_byte:
            for worker in range(len(cluster.workers)):
                self._workers.append(self._end(f"worker {worker}", self._machine[worker]))
            for server in range(len(cluster.servers)):
                on = self._of_server.get(server)
                self._servers.append(None if on is None else self._end(f"server {server}", on))

    def _end(self, name: str, machine: int) -> _End:
        sends = self._graph.link(f"{name} sends", CORE_BPS)
        return _End(sends, self._graph.link(f"{name} receives", CORE_BPS), machine)

    def thread(self, name: str, worker: int, *, by_priority: bool = False) -> int:
        """Add a thread of a worker, which does one thing after the other, and return its device."""
        if not self.shared:
            return self._graph.serial(name, by_priority=by_priority)
        weight = round(self._unit_ns * WHOLE)
        own = self._graph.link(name, CORE_BPS)
        return self._graph.connection(
            name,
            (own, self._machine[worker]),
            by_priority=by_priority,
            weights=(weight, weight),
        )

    def compute(
        self,
        shape: int,
        time_ns: npt.ArrayLike,
        device: int,
        label: Label,
        priority: npt.ArrayLike = 0,
    ) -> Int64Array:
        """Add what a thread, ``device``, computes in ``time_ns``, and return the operations."""
        if not self.shared:
            return self._graph.add_block(
                shape, time_ns, device=device, label=label, priority=priority
            )
        work = np.rint(np.asarray(time_ns) / self._unit_ns).astype(np.int64)
        return self._graph.add_block(
            shape, device=device, size_bytes=work, label=label, priority=priority
        )

    def queue(self, name: str, worker: int) -> int | None:
        """Add where a thread of a worker waits for a core; None if there is always one.

        Returns a device for the waits that ``turns`` adds.
        """
        if not self._turn_ns or worker not in self._crowded:
            return None
        return self._graph.connection(name, (self._machine[worker],), weights=(_WAITING,))

    def standing(self, worker: int, server: int) -> int | None:
        """Add where what a worker sends waits until its server gets a core, as ``queue`` does.

        None if the server is not known to share the worker's cores, or if workers share these, too:
        threads then have a part of a core each, which says how late the server's are.
        """
        machine = self._machine.get(worker)
        if machine is None or self._of_server.get(server) != machine or worker in self._crowded:
            return None
        name = f"worker {worker} waits for server {server}"
        return self._graph.connection(name, (machine,), weights=(_WAITING,))

    def turns(
        self,
        shape: tuple[int, ...],
        device: npt.ArrayLike,
        label: Label,
        turn_ns: int | None = None,
    ) -> Int64Array:
        """Add waits for a core, on devices made for that, and return the operations.

        ``turn_ns``: for how long threads compute meanwhile; None: ``Costs.turn_ns``.
        """
        size = max(1, round((self._turn_ns if turn_ns is None else turn_ns) / self._unit_ns))
        return self._graph.add_block(shape, device=device, size_bytes=size, label=label)

    def message(self, sender: int, receiver: int) -> Path:
        """What a message from one worker to another crosses besides its network links."""
        if not self._ns_per_byte:
            return Path((), ())
        return self._path(self._workers[sender], self._workers[receiver])

    def push(self, worker: int, server: int) -> Path:
        """What a push crosses besides its network links."""
        if not self._ns_per_byte:
            return Path((), ())
        return self._path(self._workers[worker], self._servers[server])

    def answer(self, server: int, worker: int) -> Path:
        """What an answer crosses besides its network links."""
        if not self._ns_per_byte:
            return Path((), ())
        return self._path(self._servers[server], self._workers[worker])

    def _path(self, sender: _End | None, receiver: _End | None) -> Path:
        """Over what is known of both ends. Servers may run on machines of their own."""
        half = max(1, round(self._ns_per_byte / 2 * WHOLE))
        weights: dict[int, int] = {}
        if sender is not None:
            weights[sender.sends] = weights[sender.machine] = half
        if receiver is not None:
            weights[receiver.receives] = half
            weights[receiver.machine] = weights.get(receiver.machine, 0) + half
        return Path(tuple(weights), tuple(weights.values()))
