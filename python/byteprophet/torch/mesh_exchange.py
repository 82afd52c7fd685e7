"""An exchange by a mesh of sockets, of tensors on processors (``native/exchange``).

Threads: ``reduce`` and ``gather`` anywhere. One thread per process waits for completions, in native
code without the interpreter's lock and only while something is under way, and calls ``done``.
``_changed`` guards the table of what is under way, which also keeps the tensors alive; an operation
is in it before the mesh knows of it. Callbacks run without the lock.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.distributed.distributed_c10d import Store

from byteprophet import _core
from byteprophet.torch import pending
from byteprophet.torch.dense import flat
from byteprophet.torch.exchange import Done, Sent
from byteprophet.torch.naming import Names

_WAIT_S = 3600.0
_CLOSE_S = 10.0


@dataclass(frozen=True)
class _UnderWay:
    tensors: Sequence[Tensor]
    done: Done


class MeshExchange:
    """See ``Exchange``."""

    device_type = "cpu"
    in_order = False

    def __init__(self, mesh: _core.Mesh, rank: int, size: int, store: Store) -> None:
        self.rank, self.size = rank, size
        self.store = store
        self.names: Names = {}
        self._mesh = mesh
        os.register_at_fork(after_in_child=mesh.close_in_child)
        self._changed = threading.Condition()
        self._under_way: dict[int, _UnderWay] = {}
        self._thread: threading.Thread | None = None
        self._closed = False
        self._calling = False  # with the lock

    def reduce(
        self, operation: int, tensors: Sequence[Tensor], average: bool, position: int, done: Done
    ) -> None:
        """As ``Exchange`` has it."""
        self._begin(
            operation,
            tensors,
            done,
            lambda memory, dtype: self._mesh.reduce(operation, memory, dtype, average, position),
        )

    def gather(self, operation: int, tensors: Sequence[Tensor], position: int, done: Done) -> None:
        """As ``Exchange`` has it."""
        self._begin(
            operation,
            tensors,
            done,
            lambda memory, dtype: self._mesh.gather(operation, memory, dtype, position),
        )

    def missing(self, operation: int) -> list[int]:
        """As ``Exchange`` has it."""
        return list(self._mesh.missing(operation))

    def sent(self) -> Sent:
        """All told."""
        sent, _ = self._mesh.traffic()
        return Sent(sent.payload_bytes, sent.busy_ns)

    def let_go(self, timeout_s: float) -> None:
        """As ``Exchange`` has it."""
        with self._changed:
            self._changed.wait_for(lambda: not self._calling, timeout_s)

    def close(self) -> None:
        """As ``Exchange`` has it."""
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
