"""Ranks whose meshes are all in this process."""

from __future__ import annotations

import queue
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.distributed import HashStore

from byteprophet import _core
from byteprophet.job.owners import Owners
from byteprophet.torch.sync.mesh_exchange import MeshExchange
from byteprophet.torch.sync.operations import Operations
from byteprophet.torch.sync.worker import Worker

LIMIT_S = 60.0

Make = Callable[[Operations, int, int, Worker], Any]
"""Makes what a rank's gradients are submitted to: ``Rows`` or ``Compressing``."""


def connected(size: int) -> list[list[int]]:
    """The sockets of each rank to each other one, as ``_core.Mesh`` takes them."""
    sockets = [[-1] * size for _ in range(size)]
    for one in range(size):
        for other in range(one):
            for rank, peer, end in zip(
                (one, other), (other, one), socket.socketpair(), strict=True
            ):
                end.setblocking(False)
                sockets[rank][peer] = end.detach()
    return sockets


class Rank:
    """One rank, with what it has heard of its gradients.

    ``way``: what ``make`` made. ``name``: of the parameter, if ``submit`` is not told another.
    """

    def __init__(
        self, number: int, sockets: Sequence[int], owners: Owners, make: Make, name: str
    ) -> None:
        size = len(sockets)
        mesh = _core.Mesh(number, sockets, 1 << 12)
        self.exchange = MeshExchange(mesh, number, size, HashStore())
        self.worker = Worker(f"rank-{number}")
        self.operations = Operations(self.exchange, 0, owners)
        self.way = make(self.operations, number, size, self.worker)
        self._name = name
        self._over: queue.Queue[BaseException | None] = queue.Queue()

    def submit(self, gradient: Tensor, parameter: str | None = None) -> None:
        self.way.submit(parameter or self._name, gradient, 0, self._over.put)

    def error(self) -> BaseException | None:
        return self._over.get(timeout=LIMIT_S)

    def close(self) -> None:
        self.exchange.close()
        self.worker.end()
        self.worker.join(LIMIT_S)


@contextmanager
def ranks_of(owners: Owners, make: Make, name: str) -> Iterator[list[Rank]]:
    sockets = connected(len(owners.weights))
    ranks = [Rank(number, mine, owners, make, name) for number, mine in enumerate(sockets)]
    try:
        yield ranks
    finally:
        for rank in ranks:
            rank.close()
