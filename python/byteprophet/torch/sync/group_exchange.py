"""An exchange that uses the collectives of a process group, such as NCCL's on GPUs.

Collectives must begin in the same order on all ranks. Rank 0 decides which one is next: among those
requested on rank 0, the one with the smallest position. It tells the others through the store, and
they begin it as soon as it has been requested on their side, too. So a late rank delays all others.
A rank that waits for one operation before it requests the one that is next would wait for ever. Two
rules prevent this. What a script causes is requested when no update is outstanding
(``outstanding.py``), and an operation begins when those of earlier iterations have ended, because
delayed averages may be waited for at any time. Only a few collectives are in flight at a time,
because none can be overtaken once it has begun.

The shards of an operation's tensors lie side by side in a buffer, padded to equal sizes, as
collectives require. So ranks that own less do not send less.

Threads: any thread may call ``reduce_scatter``, ``all_gather`` and ``all_reduce``. One thread
begins operations, another one ends them and calls ``done``. ``_changed`` guards the tables. It is
not held during callbacks, collectives and accesses to the store. On a GPU, both threads use one
stream of this exchange, which waits for the work that was in the caller's stream at the time of the
request.
``done`` is called when the GPU has finished.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import torch
from torch import Tensor, distributed
from torch.distributed.distributed_c10d import Store

from byteprophet.errors import PeerLost
from byteprophet.job.owners import Owners
from byteprophet.torch.sync import failures
from byteprophet.torch.sync.bucket_layout import PLACES
from byteprophet.torch.sync.completion import Done
from byteprophet.torch.sync.exchange import Sent
from byteprophet.torch.sync.single_tensors import all_gather, reduce_scatter
from byteprophet.torch.tensors import pending
from byteprophet.torch.tensors.dense import flat
from byteprophet.torch.tensors.naming import Names

_IN_FLIGHT = 2  # operations, so that the next one is already submitted when one ends
_KEPT = 64  # rank 0's decisions stay in the store for this many further operations
_WAIT = timedelta(hours=1)  # of one wait, which is repeated until there is something to do
_CLOSE_S = 10.0
_FAREWELL = "none"
_INTEGERS = (torch.int64, torch.int32, torch.int8, torch.uint8)
_ROOMY_BYTES = 4  # types of at least this size can hold sums of gradients


@dataclass
class _Operation:
    number: int
    flats: Sequence[Tensor]
    owners: Owners
    done: Done
    gathers: bool
    average: bool
    position: int
    asked_for: Any  # on a GPU: an event in the caller's stream at the time of the request
    work: Any = None
    whole: Tensor | None = None  # the parts of all ranks, one per row
    own: Tensor | None = None
    failed: RuntimeError | None = None


class GroupExchange:
    """Implements ``Exchange``. No other exchange may use ``store``."""

    in_order = True

    def __init__(self, group: distributed.ProcessGroup, device_type: str, store: Store) -> None:
        self.rank, self.size = distributed.get_rank(group), distributed.get_world_size(group)
        self.store = store
        self._order = cast(Any, store).clone()  # a separate connection, because waits block it
        self.numbers: Iterator[int] = itertools.count()
        self.names: Names = {}
        self.device_type = device_type
        self._group = group
        self._device = torch.device(device_type)
        self._stream = None
        if device_type == "cuda":
            self._device = torch.device("cuda", torch.cuda.current_device())
            self._stream = cast(Any, torch.cuda.Stream)(self._device)
        self._changed = threading.Condition()
        self._asked: dict[int, _Operation] = {}  # requested, not begun yet
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

    def carries(self, dtype: torch.dtype) -> bool:
        """Whether all backends of torch.distributed support the type."""
        has_fractions = dtype.is_floating_point and dtype.itemsize > 1
        return has_fractions or dtype.is_complex or dtype in _INTEGERS

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
        self._ask(operation, tensors, owners, done, False, average, position)

    def all_gather(
        self,
        operation: int,
        tensors: Sequence[Tensor],
        owners: Owners,
        position: int,
        done: Done,
    ) -> None:
        """See ``Exchange``."""
        self._ask(operation, tensors, owners, done, True, False, position)

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
        """See ``Exchange``."""

        def reduced(error: BaseException | None) -> None:
            if error is not None:
                done(error)
                return
            if summed is not None:
                summed()
            try:
                self.all_gather(operations[1], tensors, owners, positions[1], done)
            except RuntimeError as left:  # the waiting thread raises it
                done(left)

        self.reduce_scatter(operations[0], tensors, owners, average, positions[0], reduced)

    def missing(self, operation: int) -> list[int]:
        """Return an empty list, because collectives do not report which rank is late."""
        return []

    def sent(self) -> Sent:
        """The minimum payload of the collectives, and how long this process waited for them."""
        with self._changed:
            sent_bytes, busy_ns = self._payload_bytes, self._busy_ns
        return Sent(sent_bytes, busy_ns, sent_bytes, busy_ns)

    def let_go(self, timeout_s: float) -> None:
        """See ``Exchange``."""
        with self._changed:
            self._changed.wait_for(lambda: self._unfinished == 0, timeout_s)

    def close(self) -> None:
        """See ``Exchange``."""
        with self._changed:
            if self._closed:
                return
            self._changed.wait_for(lambda: self._unfinished == 0, _CLOSE_S)
            self._closed = True
            self._changed.notify_all()
        deadline_s = time.monotonic() + _CLOSE_S
        for thread in self._threads:  # one of them may wait until rank 0 closes its exchange
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def _ask(
        self,
        number: int,
        tensors: Sequence[Tensor],
        owners: Owners,
        done: Done,
        gathers: bool,
        average: bool,
        position: int,
    ) -> None:
        dtype = tensors[0].dtype
        if not self.carries(dtype):
            raise ValueError(f"byteprophet: collectives of a process group do not send {dtype}")
        if average and not (dtype.is_floating_point or dtype.is_complex):
            raise ValueError(f"byteprophet: {dtype} has no averages")
        asked_for = None
        if self._stream is not None:
            asked_for = torch.cuda.current_stream(self._device).record_event()
        with pending.values():
            flats = [flat(tensor) for tensor in tensors]
            operation = _Operation(
                number, flats, owners, done, gathers, average, position, asked_for
            )
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
            if not self._closed:  # what this rank still asks for would wait for ever
                self._fail(PeerLost("byteprophet: rank 0 has left the job"), None)
        except Exception as error:  # noqa: BLE001 (the waiting thread raises it)
            self._fail(_failure(error), operation)

    def _next(self, turn: int) -> _Operation | None:
        """The operation that all ranks begin as number ``turn``, or None if there are no more."""
        key = f"next.{turn}"
        if self.rank == 0:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._may_begin())
                operation = None if self._closed else self._first()
            self._order.set(key, str(operation.number) if operation else _FAREWELL)
            if turn >= _KEPT:
                self._order.delete_key(f"next.{turn - _KEPT}")
            if operation is None:
                return None
            with self._changed:  # not before, so that it fails with the others if the store does
                return self._asked.pop(operation.number, None)
        while not self._is_told(key):
            if self._closed:
                return None
        said = self._order.get(key).decode()
        if said == _FAREWELL:
            return None
        with self._changed:
            self._changed.wait_for(lambda: self._closed or int(said) in self._asked)
            return self._asked.pop(int(said), None)

    def _first(self) -> _Operation:
        """The requested operation with the smallest position. REQUIRES: ``_changed`` is held."""
        return min(self._asked.values(), key=lambda each: each.position)

    def _may_begin(self) -> bool:
        """Whether the next operation may begin on rank 0. REQUIRES: ``_changed`` is held."""
        if not self._asked or len(self._begun) >= _IN_FLIGHT:
            return False
        iteration = self._first().position // PLACES
        return all(each.position // PLACES >= iteration for each in self._begun)

    def _is_told(self, key: str) -> bool:
        """Wait until rank 0 has set ``key``. Returns False if the wait timed out."""
        with contextlib.suppress(distributed.DistStoreError):  # rank 0 began nothing for so long
            self._order.wait([key], _WAIT)
            return True
        return False

    def _begin(self, operation: _Operation) -> None:
        if operation.asked_for is not None:
            torch.cuda.current_stream(self._device).wait_event(operation.asked_for)
        flats = [each.to(self._device) for each in operation.flats]
        parts = [
            torch.cat([each[operation.owners.shard(len(each), rank)] for each in flats])
            for rank in range(self.size)
        ]
        longest = max(len(part) for part in parts)
        whole = flats[0].new_zeros((self.size, longest))
        own = flats[0].new_zeros(longest)
        if operation.gathers:
            own[: len(parts[self.rank])] = parts[self.rank]
            work = all_gather(_real(whole), _real(own), group=self._group, async_op=True)
        else:
            for row, part in zip(whole, parts, strict=True):
                row[: len(part)] = part
            if operation.average and whole.element_size() < _ROOMY_BYTES:
                whole /= self.size  # divide first, because the sum may overflow the type
                operation.average = False
            work = reduce_scatter(_real(own), _real(whole), group=self._group, async_op=True)
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
            except Exception as error:  # noqa: BLE001 (the waiting thread raises it)
                operation.failed = _failure(error)
                self._fail(operation.failed, None)
            with self._on_stream():  # the callback's work waits for no stream of the script
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
                shard = each[operation.owners.shard(len(each), rank)]
                shard.copy_(part[place : place + len(shard)])
                place += len(shard)
        if self._stream is not None:
            self._stream.synchronize()

    def _fail(self, error: RuntimeError, begun: _Operation | None) -> None:
        """Fail ``begun`` if it is not None, and all present and future requests."""
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


def _real(tensor: Tensor) -> Tensor:
    """A flat view of ``tensor``, as collectives require, with complex numbers as pairs of reals."""
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).view(-1)


def _failure(error: Exception) -> RuntimeError:
    lost = failures.is_of_others(error)
    what = "other ranks cannot be reached" if lost else "an operation failed on this rank"
    return failures.of_collective(error, f"byteprophet: {what}: {error}")
