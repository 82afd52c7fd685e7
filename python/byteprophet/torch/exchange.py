"""The exchange of this process with all other ranks: halves of all-reduces, by a mesh of sockets.

A *reduce* makes this rank's share of some tensors the sum or average over all ranks, a *gather*
makes the others' shares theirs; ``shares`` says whose elements are whose. Ranks start the same
operations under the same numbers, in any order and at any time.

Threads: ``reduce`` and ``gather`` anywhere. One thread per process waits for completions, in native
code without the interpreter's lock and only while something is under way, and calls ``done``.
``_changed`` guards the table of what is under way, which also keeps the tensors alive; an operation
is in it before the mesh knows of it. Callbacks run without the lock.
"""

from __future__ import annotations

import functools
import itertools
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor, distributed
from torch.distributed.distributed_c10d import PrefixStore, Store

from byteprophet import _core
from byteprophet.allreduce.mesh import connect, own_address
from byteprophet.torch import pending
from byteprophet.torch.dense import flat
from byteprophet.torch.naming import Names

Done = Callable[[BaseException | None], None]
_WAIT_S = 3600.0
_attempts = itertools.count()  # to connect, alike on all ranks
_CLOSE_S = 10.0


def share_of(elements: int, rank: int, size: int) -> slice:
    """The elements of ``elements`` that are ``rank``'s (native/exchange/shares.h)."""
    return slice(rank * elements // size, (rank + 1) * elements // size)


@dataclass(frozen=True)
class _UnderWay:
    tensors: Sequence[Tensor]
    done: Done


class Exchange:
    """One per process. ``store`` is the job's, for what is told before the job begins."""

    def __init__(self, mesh: _core.Mesh, rank: int, size: int, store: Store) -> None:
        self.rank, self.size = rank, size
        self.store = store
        self.names: Names = {}
        self._mesh = mesh
        self._changed = threading.Condition()
        self._under_way: dict[int, _UnderWay] = {}
        self._thread: threading.Thread | None = None
        self._closed = False
        self._calling = False  # with the lock

    def reduce(
        self, operation: int, tensors: Sequence[Tensor], average: bool, position: int, done: Done
    ) -> None:
        """Tensors are dense and of one type; smaller positions are more urgent.

        ``RuntimeError`` after ``close``, ``ValueError`` for a type that cannot be sent.
        """
        self._begin(
            operation,
            tensors,
            done,
            lambda memory, dtype: self._mesh.reduce(operation, memory, dtype, average, position),
        )

    def gather(self, operation: int, tensors: Sequence[Tensor], position: int, done: Done) -> None:
        """Likewise."""
        self._begin(
            operation,
            tensors,
            done,
            lambda memory, dtype: self._mesh.gather(operation, memory, dtype, position),
        )

    def missing(self, operation: int) -> list[int]:
        """Ranks whose part of an operation under way has not come."""
        return list(self._mesh.missing(operation))

    def sent(self) -> _core.Traffic:
        """By this process, all told."""
        sent, _ = self._mesh.traffic()
        return sent

    def let_go(self, timeout_s: float) -> None:
        """Wait until the thread holds no tensor any more; nothing may be under way."""
        with self._changed:
            self._changed.wait_for(lambda: not self._calling, timeout_s)

    def close(self) -> None:
        """Send what is left and leave; nothing may be started any more."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        self._mesh.close(_CLOSE_S)
        if self._thread is not None:
            self._thread.join(_CLOSE_S)

    def _begin(
        self,
        operation: int,
        tensors: Sequence[Tensor],
        done: Done,
        start: Callable[[list[tuple[int, int]], str], None],
    ) -> None:
        (dtype,) = {tensor.dtype for tensor in tensors}
        with pending.values():  # whoever waits for them waits for this
            memory = [(flat(tensor).data_ptr(), tensor.numel()) for tensor in tensors]
        with self._changed:
            self._under_way[operation] = _UnderWay(tensors, done)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(
                    target=self._run, name="byteprophet-exchange", daemon=True
                )
                self._thread.start()
            self._changed.notify()
        try:
            start(memory, str(dtype).removeprefix("torch."))
        except ValueError:
            with self._changed:
                self._under_way.pop(operation, None)
            if self._closed:
                raise RuntimeError("byteprophet: this process has left the job") from None
            raise

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._under_way and not self._closed:
                    self._changed.wait()
                if not self._under_way:
                    return
            completed = self._mesh.completed(_WAIT_S)  # at once, all of them, when it is closed
            for operation, error in completed:
                with self._changed:
                    over = self._under_way.pop(operation)
                    self._calling = True
                over.done(None if error is None else RuntimeError(error))
                del over
                with self._changed:
                    self._calling = False
                    self._changed.notify_all()
            if self._closed and not completed:
                return


@functools.cache
def process_exchange(timeout_s: float) -> Exchange:
    """The exchange with the other ranks of torch.distributed's default group.

    The first call connects, for ``timeout_s`` at most; it is made by all ranks. ``ValueError`` if
    there is no such group.
    """
    if not distributed.is_initialized():
        raise ValueError(
            "sync: call torch.distributed.init_process_group() first; it says who takes part"
        )
    rank, size = distributed.get_rank(), distributed.get_world_size()
    default: Store = distributed.distributed_c10d._get_default_store()
    store = PrefixStore("byteprophet", default)
    prefix = f"mesh.{next(_attempts)}"
    mesh = connect(store, rank, size, timeout_s, prefix=prefix, address=_own_address())
    return Exchange(mesh, rank, size, store)


def _own_address() -> str:
    """As torch.distributed chooses it: by the interface that gloo is told, or the rendezvous."""
    interface, towards = (os.environ.get(n) for n in ("GLOO_SOCKET_IFNAME", "MASTER_ADDR"))
    if not interface and not towards:
        raise ValueError(
            "sync: set GLOO_SOCKET_IFNAME or MASTER_ADDR, to tell where other ranks reach this one"
        )
    return own_address(towards or "", interface.partition(",")[0] if interface else None)
