"""The updater: applies a parameter's update once its gradient is there and ``step()`` was called.

Threads: the synchroniser's thread calls ``arrive``, the main thread calls ``hand_over`` and waits;
one daemon thread per optimizer applies updates, most urgent first, small ones a few at a time. One
lock, ``_changed``, guards the heap, the counts and the two facts of a transfer (arrived, planned):
whichever comes second puts the transfer on the heap, so it is put there once. The lock is never
held while an update runs or a callback is made. Waiters wait on the slot's own event, so nobody
polls and nobody is woken in vain. An update of a share ends, in the synchroniser's thread, when the
other ranks' shares are there.

After an error every waiter raises it: parameters that were not updated must not be used.
"""

from __future__ import annotations

import functools
import heapq
import threading
import time
from collections.abc import Iterable, Sequence

from byteprophet.observe.span_log import process_spans
from byteprophet.timeline.tables import Kind
from byteprophet.torch import pending
from byteprophet.torch.slots import Slot, Transfer
from byteprophet.torch.synchroniser import Synchroniser
from byteprophet.torch.view_step import Plan

_AT_ONCE, _AT_ONCE_BYTES = 16, 1 << 18
"""Updates made in one call, so many at most; of more bytes only one: others may be waited for."""


class Updater:
    """Applies updates in a thread of its own, which starts with the first hand-over."""

    def __init__(self, name: str, synchroniser: Synchroniser, timeout_s: float) -> None:
        self._name = name
        self._synchroniser = synchroniser
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        self._ready: list[tuple[int, int, Transfer]] = []
        self._thread: threading.Thread | None = None
        self._closed = False
        self._idle = True  # the thread holds nothing; with the lock
        self._kept: object = None
        self._handed: set[Slot] = set()  # over, their updates outstanding; with the lock
        self._failed: tuple[Slot, BaseException] | None = None
        self.outstanding = 0
        self.waited_ns = 0  # in wait_updated, all told; by the thread that trains

    def arrive(self, transfer: Transfer, error: BaseException | None) -> None:
        """The gradient is there, or will never be. Called once per transfer."""
        with self._changed:
            transfer.error = error
            transfer.arrived.set()
            if transfer.plan is not None:
                self._push(transfer)

    def hand_over(
        self, transfers: Sequence[Transfer], plan: Plan, groups: Sequence[int], keep: object
    ) -> None:
        """``step()`` was called: update each parameter by ``plan`` once its gradient is there.

        Until then, whoever touches the parameter or the gradient waits.

        ``keep`` is kept alive until that is done: a script may drop its optimizer before.
        """
        # Without the lock, for which threads would wait that start what comes next.
        for transfer in transfers:
            slot = transfer.slot
            slot.updated.clear()
            wait = functools.partial(self.wait_updated, [slot])
            if transfer.share is None:
                pending.mark(transfer.gradient, slot.gradient_text, wait)
            pending.mark(slot.parameter, slot.parameter_text, wait)
        with self._changed:
            self._kept = keep
            self.outstanding += len(transfers)
            self._handed.update(transfer.slot for transfer in transfers)
            for transfer, group in zip(transfers, groups, strict=True):
                transfer.plan, transfer.group = plan, group
                if transfer.arrived.is_set():
                    self._push(transfer)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def wait_arrived(self, slots: Iterable[Slot]) -> None:
        """Wait until the gradients of ``slots`` are there; ``RuntimeError`` if they are late."""
        deadline_s = time.monotonic() + self._timeout_s
        for slot in slots:
            transfer = slot.transfer
            if transfer is None:
                continue
            if not _wait(transfer.arrived, slot.name, deadline_s):
                self._raise_late(slot, "gradient")
            if transfer.error is not None:
                self._raise_failed(slot, transfer.error)

    def wait_updated(self, slots: Iterable[Slot]) -> None:
        """Wait until the updates of ``slots`` are done; ``RuntimeError`` if they are late."""
        started_ns = time.monotonic_ns()
        deadline_s = started_ns / 1e9 + self._timeout_s
        for slot in slots:
            if not _wait(slot.updated, slot.name, deadline_s):
                self._raise_late(slot, "update")
            if self._failed is not None:
                self._raise_failed(*self._failed)
        self.waited_ns += time.monotonic_ns() - started_ns

    def let_go(self, timeout_s: float) -> None:
        """Wait until the thread holds no tensor any more; nothing may be outstanding."""
        with self._changed:
            self._changed.wait_for(lambda: self._idle, timeout_s)

    def close(self) -> None:
        """Let the thread end; updates whose gradients are there are still applied."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread after ``close``."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def forget(self) -> None:
        """In a forked child, where the thread is not: nothing is outstanding any more."""
        self._changed = threading.Condition()  # maybe held by another thread at the fork
        self._thread = self._kept = None
        self._ready = []
        self._handed = set()
        self.outstanding = 0

    def _push(self, transfer: Transfer) -> None:
        """REQUIRES: ``_changed`` is held."""
        slot = transfer.slot
        heapq.heappush(self._ready, (-slot.priority, slot.index, transfer))
        self._changed.notify()

    def _run(self) -> None:
        with pending.values():
            self._apply_updates()

    def _apply_updates(self) -> None:
        while True:
            with self._changed:
                while not self._ready:
                    self._idle = True
                    self._changed.notify_all()
                    if self._closed:
                        return
                    self._changed.wait()
                self._idle = False
                transfers = self._most_urgent()
            self._leave(transfers, self._apply(transfers))
            del transfers

    def _most_urgent(self) -> list[Transfer]:
        """Of one plan and group, to be updated at once. REQUIRES: ``_changed`` is held."""
        first: Transfer = heapq.heappop(self._ready)[2]
        transfers, size_bytes = [first], first.gradient.nbytes
        while self._ready and len(transfers) < _AT_ONCE and first.error is None:
            following = self._ready[0][2]
            size_bytes += following.gradient.nbytes
            alike = following.plan is first.plan and following.group == first.group
            if not alike or following.error is not None or size_bytes > _AT_ONCE_BYTES:
                break
            transfers.append(heapq.heappop(self._ready)[2])
        return transfers

    def _leave(self, transfers: Sequence[Transfer], error: BaseException | None) -> None:
        """End them, but for shares, which end when the other ranks' are there."""
        ended = transfers
        if error is None and self._failed is None:
            ended = [transfer for transfer in transfers if transfer.share is None]
            for transfer in transfers:
                if transfer.share is not None:
                    self._spread(transfer)
        if ended:
            self._end(ended, error)

    def _spread(self, transfer: Transfer) -> None:
        slot = transfer.slot
        try:
            self._synchroniser.spread(
                slot.name, slot.parameter, done=functools.partial(self._end, [transfer])
            )
        except Exception as error:  # noqa: BLE001 (the training thread raises it when it waits)
            self._end([transfer], error)

    def _end(self, transfers: Sequence[Transfer], error: BaseException | None) -> None:
        # In this order, as both are read without the lock: who sees the count at zero sees every
        # slot updated, and who sees a slot updated finds it free. After a failure the count never
        # falls to zero and tensors stay marked, so that everybody looks; and nobody waits, as a
        # share may wait for others of its group that will not be spread any more.
        if error is None and self._failed is None:
            for transfer in transfers:
                if transfer.share is None:
                    pending.unmark(transfer.gradient)
                pending.unmark(transfer.slot.parameter)
        kept = None  # dropped without the lock
        with self._changed:
            if error is not None and self._failed is None:
                self._failed = transfers[0].slot, error
                for slot in self._handed:
                    slot.updated.set()
            self._handed.difference_update(transfer.slot for transfer in transfers)
            for transfer in transfers:
                transfer.slot.transfer = None
                transfer.slot.updated.set()
                self.outstanding -= error is None
            if self.outstanding == 0:
                kept, self._kept = self._kept, None
        del kept

    def _apply(self, transfers: Sequence[Transfer]) -> BaseException | None:
        first = transfers[0]
        if first.error is not None or self._failed is not None:
            return first.error
        assert first.plan is not None
        updates = [(each.slot.parameter, each.gradient, each.share) for each in transfers]
        begin_ns = process_spans.clock() if process_spans.on else 0
        try:
            first.plan.apply(first.group, updates)
        except Exception as error:  # noqa: BLE001 (the training thread raises it when it waits)
            return error
        if begin_ns:
            _record(transfers, begin_ns, process_spans.clock())
        return None

    def _raise_late(self, slot: Slot, what: str) -> None:
        transfer = slot.transfer
        where = (
            "the transfer of its gradient is outstanding"
            if transfer is None or not transfer.arrived.is_set()
            else "its gradient has arrived"
        )
        raise RuntimeError(
            f"byteprophet: waited {self._timeout_s:g} s for the {what} of parameter "
            f"'{slot.name}': {where} ({self.outstanding} updates outstanding); "
            f"{self._synchroniser.awaited(f'Gradient.{slot.name}')} "
            "(BYTEPROPHET_TIMEOUT_S sets the limit)"
        )

    def _raise_failed(self, slot: Slot, error: BaseException) -> None:
        raise RuntimeError(
            f"byteprophet: the gradient of parameter '{slot.name}' could not be exchanged or "
            f"applied: {error}"
        ) from error


def _record(transfers: Sequence[Transfer], begin_ns: int, end_ns: int) -> None:
    """A span each: what they took together, shared out by their bytes."""
    size_bytes = [transfer.gradient.nbytes for transfer in transfers]
    took_ns, done_bytes, all_bytes = end_ns - begin_ns, 0, max(1, sum(size_bytes))
    for transfer, own_bytes in zip(transfers, size_bytes, strict=True):
        from_ns = begin_ns + took_ns * done_bytes // all_bytes
        done_bytes += own_bytes
        until_ns = begin_ns + took_ns * done_bytes // all_bytes
        name, iteration = transfer.slot.name, transfer.iteration
        process_spans.add(Kind.UPDATE, name, from_ns, until_ns, iteration=iteration)


def _wait(event: threading.Event, name: str, deadline_s: float) -> bool:
    """Wait until ``event`` is set, for the sake of parameter ``name``; False: it was not."""
    if event.is_set():
        return True
    with process_spans.span(Kind.WAIT, name):
        return event.wait(max(0.0, deadline_s - time.monotonic()))
