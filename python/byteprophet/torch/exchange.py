"""The exchange of this process with all other ranks: halves of all-reduces.

A *reduce* makes this rank's share of some tensors the sum or average over all ranks, a *gather*
makes the others' shares theirs. Ranks start the same operations under the same numbers, in any
order and at any time; of what can begin, the smallest position goes first.

There are two: ``mesh_exchange.py`` by sockets of our own, for tensors on processors, and
``group_exchange.py`` by the collectives of a process group, NCCL's on GPUs.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from torch import Tensor, distributed
from torch.distributed.distributed_c10d import PrefixStore, Store

from byteprophet.allreduce.mesh import connect, own_address
from byteprophet.torch import flush_points
from byteprophet.torch.naming import Names

Done = Callable[[BaseException | None], None]

TRANSPORT_VARIABLE = "BYTEPROPHET_TRANSPORT"
SOCKETS, COLLECTIVES = "sockets", "collectives"
_NCCL = "nccl"
_made: list[tuple[Store, Exchange]] = []  # this process's, if it has one, and its group's store
_attempts = itertools.count()  # to connect, alike on all ranks


@dataclass(frozen=True)
class Sent:
    """By this process: payload bytes, and how long there was something to send."""

    payload_bytes: int
    busy_ns: int


class Exchange(Protocol):
    """One per process. ``store`` is the job's, for what is told before the job begins."""

    rank: int
    size: int
    store: Store
    names: Names
    device_type: str
    """Of the tensors that it is for."""
    in_order: bool
    """Whether what rank 0 has been asked for first begins first, also where others lack it yet."""

    def reduce(
        self, operation: int, tensors: Sequence[Tensor], average: bool, position: int, done: Done
    ) -> None:
        """Tensors are dense and of one type; integers are never averaged.

        ``RuntimeError`` after ``close``, ``ValueError`` for a type that cannot be sent.
        """

    def gather(self, operation: int, tensors: Sequence[Tensor], position: int, done: Done) -> None:
        """Likewise."""

    def missing(self, operation: int) -> list[int]:
        """Ranks whose part of an operation under way has not come, as far as that is known."""

    def sent(self) -> Sent:
        """All told."""

    def let_go(self, timeout_s: float) -> None:
        """Wait until no thread holds a tensor any more; nothing may be under way."""

    def close(self) -> None:
        """Send what is left and leave; nothing may be started any more."""


def process_exchange(timeout_s: float) -> Exchange:
    """The exchange with the other ranks of torch.distributed's default group.

    By collectives if that group is NCCL's, or if BYTEPROPHET_TRANSPORT says so; one of them takes
    ``timeout_s`` at most. The first call connects, for as long; it is made by all ranks.
    ``ValueError`` if there is no such group.
    """
    if not distributed.is_initialized():
        raise ValueError(
            "sync: call torch.distributed.init_process_group() first; it says who takes part"
        )
    default: Store = distributed.distributed_c10d._get_default_store()
    if _made and _made[0][0] is not default:  # of a group that was destroyed
        leave_process_exchange()
    if not _made:
        _made.append((default, _connected(default, timeout_s)))
        flush_points.at_stop(leave_process_exchange)
    return _made[0][1]


def _connected(default: Store, timeout_s: float) -> Exchange:
    nccl = distributed.get_backend() == _NCCL
    transport = os.environ.get(TRANSPORT_VARIABLE) or (COLLECTIVES if nccl else SOCKETS)
    if transport not in (SOCKETS, COLLECTIVES):
        raise ValueError(
            f"{TRANSPORT_VARIABLE}={transport!r}: must be {SOCKETS!r} or {COLLECTIVES!r}"
        )
    rank, size = distributed.get_rank(), distributed.get_world_size()
    store = PrefixStore("byteprophet", default)
    prefix = f"mesh.{next(_attempts)}"
    if transport == COLLECTIVES:
        from byteprophet.torch.group_exchange import GroupExchange

        # A group of its own: its collectives stand in no order with the script's.
        group = distributed.new_group(timeout=timedelta(seconds=timeout_s))
        return GroupExchange(group, "cuda" if nccl else "cpu", PrefixStore(prefix, store))
    from byteprophet.torch.mesh_exchange import MeshExchange

    mesh = connect(store, rank, size, timeout_s, prefix=prefix, address=_own_address())
    return MeshExchange(mesh, rank, size, store)


def leave_process_exchange() -> None:
    """Close it, if there is one; the next call of ``process_exchange`` makes another."""
    while _made:
        _made.pop()[1].close()


def _own_address() -> str:
    """As torch.distributed chooses it: by the interface that gloo is told, or the rendezvous."""
    interface, towards = (os.environ.get(n) for n in ("GLOO_SOCKET_IFNAME", "MASTER_ADDR"))
    if not interface and not towards:
        raise ValueError(
            "sync: set GLOO_SOCKET_IFNAME or MASTER_ADDR, to tell where other ranks reach this one"
        )
    return own_address(towards or "", interface.partition(",")[0] if interface else None)
