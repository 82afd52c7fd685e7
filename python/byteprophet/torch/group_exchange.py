"""An exchange by the collectives of a process group: NCCL's on GPUs, or any other's.

Collectives must begin in one order on all ranks. Rank 0 says which is next, through the store: of
what it has been asked for, the smallest position. The others begin it as soon as they have been
asked for it, too; so one that is late holds up all, but nobody waits in a circle, as no operation
that rank 0 has been asked for depends on one that it has not: it is asked for nothing of an
iteration while updates of the one before are outstanding (``gradients.py``). Few are under way at
a time, since none can be overtaken once it has begun.

Shares of an operation's tensors lie side by side in a buffer, padded to equal parts, as
collectives want them.

Threads: ``reduce`` and ``gather`` anywhere; one thread begins operations, another one ends them
and calls ``done``. ``_changed`` guards the tables; callbacks, collectives and the store are used
without it. On a GPU both threads work on a stream of their own, which waits for what the caller's
stream had to do when the operation was asked for; ``done`` comes when the GPU has finished.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import torch
from torch import Tensor, distributed
from torch.distributed.distributed_c10d import Store

from byteprophet.torch import pending
from byteprophet.torch.dense import flat, share_of
from byteprophet.torch.exchange import Done, Sent
from byteprophet.torch.naming import Names

_UNDER_WAY = 2  # operations: the next one is there when one ends
_KEPT = 64  # what rank 0 said stays in the store for so many operations more
_WAIT = timedelta(hours=1)  # and again, until there is something to do
_CLOSE_S = 10.0
_FAREWELL = "none"
_ROOMY_BYTES = 4  # types as large hold sums of gradients

# The names since torch 2.13, which warns of the older ones.
_all_gather: Any = getattr(distributed, "all_gather_single", None)
_reduce_scatter: Any = getattr(distributed, "reduce_scatter_single", None)
if _all_gather is None or _reduce_scatter is None:
    _all_gather, _reduce_scatter = (
        distributed.all_gather_into_tensor,
        distributed.reduce_scatter_tensor,
    )


@dataclass
class _Operation:
    number: int
    flats: Sequence[Tensor]
    done: Done
    gathers: bool
    average: bool
    position: int
    asked_for: Any  # of the caller's stream, on a GPU
    work: Any = None
    whole: Tensor | None = None  # all ranks' parts
    own: Tensor | None = None
    failed: RuntimeError | None = None


class GroupExchange:
    """See ``Exchange``. ``store`` is of this exchange alone, ``device_type`` the tensors'."""

    in_order = True

    def __init__(self, group: distributed.ProcessGroup, device_type: str, store: Store) -> None:
        self.rank, self.size = distributed.get_rank(group), distributed.get_world_size(group)
        self.store = store
        self._order = cast(Any, store).clone()  # a connection of its own, as the others wait in it
        self.names: Names = {}
        self.device_type = device_type
        self._group = group
        self._device = torch.device(device_type)
        self._stream = None
        if device_type == "cuda":
            self._device = torch.device("cuda", torch.cuda.current_device())
            self._stream = cast(Any, torch.cuda.Stream)(self._device)
        self._changed = threading.Condition()
        self._asked: dict[int, _Operation] = {}  # not begun yet
        self._begun: deque[_Operation] = deque()
        self._unfinished = 0
        self._error: RuntimeError | None = None
        self._closed = False
        self._payload_bytes = self._busy_ns = 0
        self._threads = [
            threading.Thread(target=target, name=f"byteprophet-{name}", daemon=True)
            for name, target in (("begin", self._begin_all), ("end", self._end_all))
        ]
        for thread in self._threads:
            thread.start()

    def reduce(
        self, operation: int, tensors: Sequence[Tensor], average: bool, position: int, done: Done
    ) -> None:
        """As ``Exchange`` has it."""
        self._ask(operation, tensors, done, False, average, position)

    def gather(self, operation: int, tensors: Sequence[Tensor], position: int, done: Done) -> None:
        """As ``Exchange`` has it."""
        self._ask(operation, tensors, done, True, False, position)

    def missing(self, operation: int) -> list[int]:
        """A collective does not say who is late."""
        return []

    def sent(self) -> Sent:
        """What the algorithms must move at least, and how long collectives took."""
        with self._changed:
            return Sent(self._payload_bytes, self._busy_ns)

    def let_go(self, timeout_s: float) -> None:
        """As ``Exchange`` has it."""
        with self._changed:
            self._changed.wait_for(lambda: self._unfinished == 0, timeout_s)

    def close(self) -> None:
        """As ``Exchange`` has it."""
        with self._changed:
            if self._closed:
                return
            self._changed.wait_for(lambda: self._unfinished == 0, _CLOSE_S)
            self._closed = True
            self._changed.notify_all()
        deadline_s = time.monotonic() + _CLOSE_S
        for thread in self._threads:  # one may be told of rank 0's end only when that comes
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def _ask(
        self,
        number: int,
        tensors: Sequence[Tensor],
        done: Done,
        gathers: bool,
        average: bool,
        position: int,
    ) -> None:
        asked_for = None
        if self._stream is not None:
            asked_for = torch.cuda.current_stream(self._device).record_event()
        with pending.values():
            average = average and tensors[0].is_floating_point()
            flats = [flat(tensor) for tensor in tensors]
            operation = _Operation(number, flats, done, gathers, average, position, asked_for)
        with self._changed:
            if self._closed:
                raise RuntimeError("byteprophet: this process has left the job")
            self._unfinished += 1
            if self._error is None:
                self._asked[number] = operation
            else:
                operation.failed = self._error
                self._begun.append(operation)
            self._changed.notify_all()

    def _begin_all(self) -> None:
        turn = 0
        operation: _Operation | None = None
        try:
            while (operation := self._next(turn)) is not None:
                turn += 1
                with pending.values(), self._on_stream():
                    self._begin(operation)
                with self._changed:
                    self._begun.append(operation)
                    self._changed.notify_all()
                operation = None
        except Exception as error:  # noqa: BLE001 (whoever waits raises it)
            self._fail(_failure(error), operation)

    def _next(self, turn: int) -> _Operation | None:
        """What all ranks begin as number ``turn``; None: no more."""
        key = f"next.{turn}"
        if self.rank == 0:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._closed or (self._asked and len(self._begun) < _UNDER_WAY)
                )
                operation = None
                if not self._closed:
                    operation = min(self._asked.values(), key=lambda each: each.position)
                    del self._asked[operation.number]
            self._order.set(key, str(operation.number) if operation else _FAREWELL)
            if turn >= _KEPT:
                self._order.delete_key(f"next.{turn - _KEPT}")
            return operation
        while not self._is_told(key):
            if self._closed:
                return None
        said = self._order.get(key).decode()
        if said == _FAREWELL:
            return None
        with self._changed:
            self._changed.wait_for(lambda: self._closed or int(said) in self._asked)
            return self._asked.pop(int(said), None)

    def _is_told(self, key: str) -> bool:
        """Whether rank 0 has set ``key``, after a while at most; if so, at once."""
        with contextlib.suppress(distributed.DistStoreError):  # nothing was to be done for so long
            self._order.wait([key], _WAIT)
            return True
        return False

    def _begin(self, operation: _Operation) -> None:
        if operation.asked_for is not None:
            torch.cuda.current_stream(self._device).wait_event(operation.asked_for)
        flats = [each.to(self._device) for each in operation.flats]
        parts = [
            torch.cat([each[share_of(len(each), rank, self.size)] for each in flats])
            for rank in range(self.size)
        ]
        longest = max(len(part) for part in parts)
        whole = flats[0].new_zeros((self.size, longest))
        own = flats[0].new_zeros(longest)
        if operation.gathers:
            own[: len(parts[self.rank])] = parts[self.rank]
            work = _all_gather(whole.view(-1), own, group=self._group, async_op=True)
        else:
            for row, part in zip(whole, parts, strict=True):
                row[: len(part)] = part
            if operation.average and whole.element_size() < _ROOMY_BYTES:
                whole /= self.size  # before: their sum may be too large for the type
                operation.average = False
            work = _reduce_scatter(own, whole.view(-1), group=self._group, async_op=True)
        operation.whole, operation.own, operation.work = whole, own, work

    def _end_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._begun or self._closed)
                if not self._begun:
                    return
                operation = self._begun[0]
            began_ns = time.monotonic_ns()
            try:
                if operation.failed is None:
                    with pending.values(), self._on_stream():
                        self._end(operation)
            except Exception as error:  # noqa: BLE001 (whoever waits raises it)
                operation.failed = _failure(error)
                self._fail(operation.failed, None)
            operation.done(operation.failed)
            with self._changed:
                self._begun.popleft()
                self._unfinished -= 1
                if operation.whole is not None:
                    self._payload_bytes += operation.whole[1:].nbytes
                    self._busy_ns += time.monotonic_ns() - began_ns
                self._changed.notify_all()
            del operation

    def _end(self, operation: _Operation) -> None:
        operation.work.wait()
        assert operation.own is not None
        assert operation.whole is not None
        if operation.average:
            operation.own /= self.size
        parts = {self.rank: operation.own}
        if operation.gathers:
            parts = {n: part for n, part in enumerate(operation.whole) if n != self.rank}
        for rank, part in parts.items():
            place = 0
            for each in operation.flats:
                share = each[share_of(len(each), rank, self.size)]
                share.copy_(part[place : place + len(share)])
                place += len(share)
        if self._stream is not None:
            self._stream.synchronize()

    def _fail(self, error: RuntimeError, begun: _Operation | None) -> None:
        """Whatever is asked for, or will be, fails, and so does ``begun``, if there is one."""
        with self._changed:
            self._error = self._error or error
            left = [*([] if begun is None else [begun]), *self._asked.values()]
            for operation in left:
                operation.failed = self._error
            self._begun.extend(left)
            self._asked.clear()
            self._changed.notify_all()

    def _on_stream(self) -> AbstractContextManager[Any]:
        return contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream)


def _failure(error: Exception) -> RuntimeError:
    return RuntimeError(f"byteprophet: other ranks cannot be reached: {error}")
