"""The updater: updates a parameter once its gradient has arrived and ``step()`` was called.

Threads: the synchroniser's thread calls ``arrive``; the main thread calls ``hand_over`` and waits.
One daemon thread per optimizer applies updates. It takes the most urgent first, and applies several
small ones together. One lock, ``_changed``, guards the heap, the counts and the two conditions of a
transfer: ``arrived`` is set, and it has a ``frozen_step``. The thread that fulfils the second
condition pushes the transfer onto the heap, so this happens once. The lock is never held during an
update or a callback. Waiters wait on the slot's own flag, so nothing polls and nothing wakes up in
vain. Only the training thread replaces that flag, in ``hand_over``, when none is outstanding. From
then on, it and ``arrived`` are set under the lock. The update of a shard ends in the synchroniser's
thread, when the other ranks' shards have arrived. GPU updates run on the updater's own stream. This
stream first waits for the work that the script had submitted when it called ``step()``. The update
ends when the GPU has finished it.

Where cores are scarce, ``step()`` has the gradients that have arrived applied at once, in the
training thread, before it hands the others over. No update is outstanding then, so the updater's
thread has nothing to do at that time.

After an error, every waiter raises it, because parameters that were not updated must not be used.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import threading
import time
from collections.abc import Iterable, Sequence

from byteprophet.errors import TimedOut, because_of
from byteprophet.observe.pace import process_pace
from byteprophet.observe.span_log import process_spans
from byteprophet.tensor_names import gradient_name
from byteprophet.timeline.tables import Kind
from byteprophet.torch.front.flag import Flag
from byteprophet.torch.front.slots import Slot, Transfer
from byteprophet.torch.front.view_step import FrozenStep
from byteprophet.torch.sync.patience import Patience
from byteprophet.torch.sync.synchroniser import Synchroniser
from byteprophet.torch.tensors import ending_threads, own_streams, pending
from byteprophet.torch.tensors.compiling import never_compiling

_AT_ONCE, _AT_ONCE_BYTES = 16, 1 << 18
"""Small updates are applied together, up to this many or this many bytes. A larger one is applied
alone, so that it does not delay a waiting forward pass."""


class Updater:
    """Applies updates in a separate thread, which starts with the first ``hand_over``."""

    def __init__(self, name: str, synchroniser: Synchroniser, timeout_s: float) -> None:
        self._name = name
        self._synchroniser = synchroniser
        self._timeout_s = timeout_s
        self._streams = own_streams.OwnStreams()
        self._changed = threading.Condition()
        self._ready: list[tuple[int, int, Transfer]] = []
        self._thread: threading.Thread | None = None
        self._closed = False
        self._idle = True  # the thread holds no tensor; guarded by the lock
        self._kept: object = None
        self._handed: set[Slot] = set()  # updates outstanding; guarded by the lock
        self._failed: tuple[Slot, BaseException] | None = None
        self.outstanding = 0
        self._patience = Patience()
        self.waited_ns = 0  # total time in wait_updated; the training thread writes it

    def arrive(self, transfer: Transfer, error: BaseException | None) -> None:
        """Note that the gradient has arrived, or never will (``error``). Call once per transfer."""
        with self._changed:
            transfer.error = error
            transfer.arrived.set()
            if transfer.frozen_step is not None:
                self._push(transfer)
                self._changed.notify_all()  # the thread, and who waits until it lets go

    def apply_arrived(
        self, transfers: Sequence[Transfer], frozen_step: FrozenStep, groups: Sequence[int]
    ) -> set[Transfer]:
        """Update, in this thread, the parameters whose whole gradients have arrived.

        No update may be outstanding. Returns the transfers that were used. Raises ``RuntimeError``
        if the optimizer fails. On a GPU nothing is applied: its stream would have to be waited for.
        """
        at_hand: dict[int, list[Transfer]] = {}
        with pending.values(), self._changed:  # ``arrive`` pushes what has a step when it arrives
            for transfer, group in zip(transfers, groups, strict=True):
                has_all = transfer.arrived.is_set() and transfer.error is None
                if has_all and transfer.shard is None and transfer.gradient.is_cpu:
                    transfer.frozen_step, transfer.group = frozen_step, group
                    at_hand.setdefault(group, []).append(transfer)
        used: set[Transfer] = set()
        for together in at_hand.values():
            for transfer in together:
                pending.unmark(transfer.gradient)  # its average is there
            with pending.values(), contextlib.ExitStack() as streams:
                error = self._apply(together, streams)
            if error is not None:
                self._failed = together[0].slot, error
                self._raise_failed(*self._failed)
            used.update(together)
        for transfer in used:
            transfer.slot.transfer = None
        return used

    def hand_over(
        self,
        transfers: Sequence[Transfer],
        frozen_step: FrozenStep,
        groups: Sequence[int],
        keep: object,
    ) -> None:
        """Update each parameter with ``frozen_step`` once its gradient has arrived.

        Until then, any access to the parameter or its gradient waits. ``groups`` holds the index
        of the optimizer's parameter group for each transfer. ``keep`` is kept alive until all
        updates are done, because a script may drop its optimizer before that.
        """
        if not transfers:
            return  # no update would ever let ``keep`` go
        # This runs without the lock, so that it does not block threads that need the lock.
        for transfer in transfers:
            slot = transfer.slot
            slot.updated = Flag()
            wait = functools.partial(self.wait_updated, [slot])
            if transfer.shard is None:
                pending.mark(transfer.gradient, slot.gradient_text, wait)
            pending.mark(slot.parameter, slot.parameter_text, wait)
        with self._changed:
            self._kept = keep
            self.outstanding += len(transfers)
            self._handed.update(transfer.slot for transfer in transfers)
            for transfer, group in zip(transfers, groups, strict=True):
                transfer.frozen_step, transfer.group = frozen_step, group
                if transfer.arrived.is_set():
                    self._push(transfer)
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def wait_arrived(self, slots: Iterable[Slot]) -> None:
        """Wait until the gradients of ``slots`` are there; raises ``TimedOut`` if one is late."""
        found = (slot.transfer for slot in slots)
        self.wait_transfers(transfer for transfer in found if transfer is not None)

    def wait_transfers(self, transfers: Iterable[Transfer]) -> None:
        """Wait until ``transfers`` have arrived; raises ``TimedOut`` if one is late."""
        deadline_s = time.monotonic() + self._timeout_s
        for transfer in transfers:
            slot = transfer.slot
            if not self._wait(transfer.arrived, slot, deadline_s):
                self._raise_late(slot, "gradient")
            if transfer.error is not None:
                self._raise_failed(slot, transfer.error)

    @property
    def has_failed(self) -> bool:
        """Whether an update has failed: ``wait_updated`` raises its error from then on."""
        return self._failed is not None

    def wait_updated(self, slots: Iterable[Slot]) -> None:
        """Wait until the updates of ``slots`` are done; raises ``TimedOut`` if one is late."""
        if self._failed is not None:
            self._raise_failed(*self._failed)
        started_ns = 0  # of the first wait; most calls have none
        for slot in slots:
            if not slot.updated.is_set():
                started_ns = started_ns or time.monotonic_ns()
                if not self._wait(slot.updated, slot, started_ns / 1e9 + self._timeout_s):
                    self._raise_late(slot, "update")
            if self._failed is not None:
                self._raise_failed(*self._failed)
        if started_ns:
            self.waited_ns += time.monotonic_ns() - started_ns

    def let_go(self, timeout_s: float) -> None:
        """Wait until the thread holds no tensor. No update may be outstanding."""
        with self._changed:
            self._changed.wait_for(lambda: self._idle, timeout_s)

    def close(self) -> None:
        """Let the thread end. It still applies updates whose gradients have arrived."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            ending_threads.add(self._thread)

    def forget(self) -> None:
        """Drop all updates, in a forked child, which does not have the thread."""
        self._changed = threading.Condition()  # another thread may have held it at the fork
        self._thread = self._kept = None
        self._ready = []
        self._handed = set()
        self.outstanding = 0

    def _push(self, transfer: Transfer) -> None:
        """Push ``transfer`` onto the heap. REQUIRES: ``_changed`` is held."""
        slot = transfer.slot
        heapq.heappush(self._ready, (slot.position, slot.index, transfer))

    def _run(self) -> None:
        with pending.values(), never_compiling():
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
            with contextlib.ExitStack() as streams:
                self._leave(transfers, self._apply(transfers, streams))
            del transfers

    def _most_urgent(self) -> list[Transfer]:
        """Pop the most urgent transfers of one step and group, to be updated together.

        REQUIRES: ``_changed`` is held.
        """
        first: Transfer = heapq.heappop(self._ready)[2]
        transfers, size_bytes = [first], first.size_bytes
        while self._ready and len(transfers) < _AT_ONCE and first.error is None:
            following = self._ready[0][2]
            size_bytes += following.size_bytes
            alike = following.frozen_step is first.frozen_step and following.group == first.group
            if not alike or following.error is not None or size_bytes > _AT_ONCE_BYTES:
                break
            transfers.append(heapq.heappop(self._ready)[2])
        return transfers

    def _leave(self, transfers: Sequence[Transfer], error: BaseException | None) -> None:
        """End the updates. Updates of shards end when the other ranks' shards have arrived."""
        ended = transfers
        if error is None and self._failed is None:
            ended = [transfer for transfer in transfers if transfer.shard is None]
            for transfer in transfers:
                if transfer.shard is not None:
                    self._all_gather(transfer)
        if ended:
            self._end(ended, error)

    def _all_gather(self, transfer: Transfer) -> None:
        slot = transfer.slot
        try:
            self._synchroniser.all_gather(
                slot.name, slot.parameter, done=functools.partial(self._end, [transfer])
            )
        except Exception as error:  # noqa: BLE001 (the training thread raises it when it waits)
            self._end([transfer], error)

    def _end(self, transfers: Sequence[Transfer], error: BaseException | None) -> None:
        # The order matters, because ``outstanding`` and ``updated`` are read without the lock. A
        # thread that sees ``outstanding`` at zero must see every slot updated. A thread that sees
        # a slot updated must find its tensors unmarked. After a failure, ``outstanding`` never
        # falls to zero and tensors stay marked, so every access finds the error. Nobody waits
        # then, because a shard may wait for others of its bucket that will never be updated.
        if error is None and self._failed is None:
            for transfer in transfers:
                if transfer.shard is None:
                    pending.unmark(transfer.gradient)
                pending.unmark(transfer.slot.parameter)
        kept = None  # released without the lock
        with self._changed:
            if error is not None and self._failed is None:
                self._failed = transfers[0].slot, error
                for slot in self._handed:
                    slot.updated.set()
            self._handed.difference_update(transfer.slot for transfer in transfers)
            for transfer in transfers:
                if transfer.slot.transfer is transfer:
                    transfer.slot.transfer = None
                transfer.slot.updated.set()
                self.outstanding -= error is None
            if self.outstanding == 0:
                kept, self._kept = self._kept, None
        del kept

    def _apply(
        self, transfers: Sequence[Transfer], streams: contextlib.ExitStack
    ) -> BaseException | None:
        """Apply the updates on our own streams, which stay current until ``streams`` is exited."""
        first = transfers[0]
        if first.error is not None or self._failed is not None:
            return first.error
        assert first.frozen_step is not None
        updates = [(each.slot.parameter, each.gradient, each.shard) for each in transfers]
        begin_ns = process_spans.clock() if process_spans.on else 0
        try:
            gradients = (gradient for _, gradient, _ in updates)
            used = self._streams.used(gradients, first.frozen_step.before)
            finish = streams.enter_context(used)
            first.frozen_step.apply(first.group, updates)
            finish()
        except Exception as error:  # noqa: BLE001 (the training thread raises it when it waits)
            return error
        if begin_ns:
            _record(transfers, begin_ns, process_spans.clock())
        return None

    def _wait(self, flag: Flag, slot: Slot, deadline_s: float) -> bool:
        """Wait until ``flag`` is set, on behalf of ``slot``. False after the deadline.

        A long wait is reported while it lasts.
        """
        if flag.is_set():
            return True
        begin_ns = time.monotonic_ns()
        with process_spans.span(Kind.WAIT, slot.name):
            is_set = self._patience.wait(
                flag.wait,
                deadline_s - begin_ns / 1e9,
                self._synchroniser.rank,
                lambda: f"parameter '{slot.name}': {self._awaited(slot)}",
            )
        process_pace.waited(slot.name, begin_ns)
        return is_set

    def _awaited(self, slot: Slot) -> str:
        return self._synchroniser.awaited(gradient_name(slot.name))

    def _raise_late(self, slot: Slot, what: str) -> None:
        transfer = slot.transfer
        where = (
            "the transfer of its gradient is outstanding"
            if transfer is None or not transfer.arrived.is_set()
            else "its gradient has arrived"
        )
        raise TimedOut(
            f"byteprophet: waited {self._timeout_s:g} s for the {what} of parameter "
            f"'{slot.name}': {where} ({self.outstanding} updates outstanding); "
            f"{self._awaited(slot)} "
            "(BYTEPROPHET_TIMEOUT_S sets the limit)"
        )

    def _raise_failed(self, slot: Slot, error: BaseException) -> None:
        raise because_of(
            error,
            f"byteprophet: the gradient of parameter '{slot.name}' could not be exchanged or "
            f"applied: {error}",
        ) from error


def _record(transfers: Sequence[Transfer], begin_ns: int, end_ns: int) -> None:
    """Record one span per transfer: their common time, divided in proportion to their bytes."""
    size_bytes = [transfer.size_bytes for transfer in transfers]
    took_ns, done_bytes, all_bytes = end_ns - begin_ns, 0, max(1, sum(size_bytes))
    for transfer, own_bytes in zip(transfers, size_bytes, strict=True):
        from_ns = begin_ns + took_ns * done_bytes // all_bytes
        done_bytes += own_bytes
        until_ns = begin_ns + took_ns * done_bytes // all_bytes
        name, iteration = transfer.slot.name, transfer.iteration
        process_spans.add(Kind.UPDATE, name, from_ns, until_ns, iteration=iteration)
