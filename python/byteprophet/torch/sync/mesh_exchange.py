"""An exchange that sends CPU tensors over a mesh of sockets (``native/exchange``).

Threads: any thread may call ``reduce_scatter``, ``all_gather`` and ``all_reduce``. One thread per
process waits for completions and calls ``done``. It waits in native code, without the GIL, and only
while something is in flight. ``_changed`` guards the table of operations in flight, which also
keeps their tensors alive, and what is called when a sum is there. An operation enters the table
before it is given to the mesh. Callbacks run without the lock.
"""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.distributed_c10d import Store

from byteprophet import _core
from byteprophet.allreduce.pace import NO_SOCKETS, Pace
from byteprophet.job.owners import Owners
from byteprophet.torch.sync import failures
from byteprophet.torch.sync.completion import Done
from byteprophet.torch.sync.exchange import Sent
from byteprophet.torch.tensors import pending
from byteprophet.torch.tensors.dense import flat
from byteprophet.torch.tensors.naming import Names

_WAIT_S = 3600.0
_CLOSE_S = 10.0


@dataclass(frozen=True)
class _InFlight:
    tensors: Sequence[Tensor]
    done: Done


class MeshExchange:
    """Implements ``Exchange``."""

    device_type = "cpu"
    in_order = False

    def __init__(
        self, mesh: _core.Mesh, rank: int, size: int, store: Store, pace: Pace = NO_SOCKETS
    ) -> None:
        self.rank, self.size = rank, size
        self.store = store
        self.numbers: Iterator[int] = itertools.count()
        self.names: Names = {}
        self._mesh = mesh
        self._pace = pace
        _living.add(self)
        self._changed = threading.Condition()
        self._in_flight: dict[int, _InFlight] = {}
        self._summed: dict[int, Callable[[], None]] = {}  # of all-reduces, by their first number
        self._thread: threading.Thread | None = None
        self._closed = False
        self._calling = False  # a callback is running; guarded by the lock

    def carries(self, dtype: torch.dtype) -> bool:
        """See ``Exchange``."""
        return _name(dtype) in _core.Mesh.dtypes()

    def reduce_scatter(
        self,
        operation: int,
        tensors: Sequence[Tensor],
        owners: Owners,
        average: bool,
        position: int,
        done: Done,
    ) -> None:
        """See ``Exchange``."""
        self._begin(
            operation,
            tensors,
            done,
            lambda memory, dtype: self._mesh.reduce(
                operation, memory, dtype, average, position, owners.weights
            ),
        )

    def all_gather(
        self,
        operation: int,
        tensors: Sequence[Tensor],
        owners: Owners,
        position: int,
        done: Done,
    ) -> None:
        """See ``Exchange``."""
        self._begin(
            operation,
            tensors,
            done,
            lambda memory, dtype: self._mesh.gather(
                operation, memory, dtype, position, owners.weights
            ),
        )

    def all_reduce(
        self,
        operations: tuple[int, int],
        tensors: Sequence[Tensor],
        owners: Owners,
        average: bool,
        positions: tuple[int, int],
        summed: Callable[[], None] | None,
        done: Done,
    ) -> None:
        """See ``Exchange``. The mesh begins the all-gather by itself."""
        reduce, gather = operations
        if summed is not None:
            with self._changed:
                self._summed[reduce] = summed

        def forget() -> None:  # it is still there if there will be no sum
            with self._changed:
                self._summed.pop(reduce, None)

        def over(error: BaseException | None) -> None:
            forget()
            done(error)

        def start(memory: list[tuple[int, int]], dtype: str) -> None:
            tells_sum = summed is not None
            self._mesh.all_reduce(
                reduce, gather, memory, dtype, average, positions, owners.weights, tells_sum
            )

        try:
            self._begin(gather, tensors, over, start)
        except (ValueError, RuntimeError):
            forget()
            raise

    def missing(self, operation: int) -> list[int]:
        """See ``Exchange``."""
        return list(self._mesh.missing(operation))

    def sent(self) -> Sent:
        """See ``Exchange``."""
        sent, _ = self._mesh.traffic()
        return Sent(sent.payload_bytes, sent.busy_ns, sent.carried_bytes, sent.carrying_ns)

    def limit(self, rate_bps: int) -> None:
        """Send to all ranks together at ``rate_bps`` at most; 0: without a limit."""
        self._pace.limit(rate_bps)

    def let_go(self, timeout_s: float) -> None:
        """See ``Exchange``."""
        with self._changed:
            self._changed.wait_for(lambda: not self._calling, timeout_s)

    def close(self) -> None:
        """See ``Exchange``."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        self._pace.close()
        self._mesh.close(_CLOSE_S)
        if self._thread is not None:
            self._thread.join(_CLOSE_S)

    def close_in_child(self) -> None:
        """Close this process' copies of the sockets, after a fork."""
        self._mesh.close_in_child()

    def _begin(
        self,
        operation: int,
        tensors: Sequence[Tensor],
        done: Done,
        start: Callable[[list[tuple[int, int]], str], None],
    ) -> None:
        (dtype,) = {tensor.dtype for tensor in tensors}
        with pending.values():  # their waits would wait for this operation itself
            memory = [(flat(tensor).data_ptr(), tensor.numel()) for tensor in tensors]
        with self._changed:
            self._in_flight[operation] = _InFlight(tensors, done)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(
                    target=self._run, name="byteprophet-exchange", daemon=True
                )
                self._thread.start()
            self._changed.notify()
        try:
            start(memory, _name(dtype))
        except ValueError:
            with self._changed:
                self._in_flight.pop(operation, None)
            if self._closed:
                raise RuntimeError("byteprophet: this process has left the job") from None
            raise

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._in_flight and not self._closed:
                    self._changed.wait()
                if not self._in_flight:
                    return
            completed = self._mesh.completed(_WAIT_S)  # all at once when the mesh is closed
            for operation, error in completed:
                with self._changed:
                    summed = self._summed.pop(operation, None)
                    over = self._in_flight.pop(operation) if summed is None else None
                    self._calling = True
                if summed is not None:
                    summed()
                elif over is not None:
                    over.done(None if error is None else failures.by_text(error))
                del over, summed
                with self._changed:
                    self._calling = False
                    self._changed.notify_all()
            if self._closed and not completed:
                return


def _name(dtype: torch.dtype) -> str:
    """The name of the type in native/exchange/dtype.h."""
    return str(dtype).removeprefix("torch.")


_living: weakref.WeakSet[MeshExchange] = weakref.WeakSet()


def _close_in_child() -> None:
    for exchange in _living:
        exchange.close_in_child()


os.register_at_fork(after_in_child=_close_in_child)
