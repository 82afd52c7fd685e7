"""Waits for averages of gradients, and hands them to the script.

A submitted gradient is marked: any access to it waits until it is averaged
(``tensors/pending.py``).

Threads: the training thread; ``submit`` also runs in autograd's.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from torch import Tensor

from byteprophet.torch.front import own_memory
from byteprophet.torch.front.accumulation import Accumulation
from byteprophet.torch.front.delays import Delays
from byteprophet.torch.front.sender import Sender
from byteprophet.torch.front.slots import Slot, Transfer
from byteprophet.torch.front.unsharding import TOUCHED, Unsharding
from byteprophet.torch.front.updates import Updater
from byteprophet.torch.sync.completion import STEP, SYNCHRONIZE, Call
from byteprophet.torch.sync.synchroniser import Synchroniser
from byteprophet.torch.tensors import pending
from byteprophet.torch.tensors.backward import in_backward


class Averages:
    """Averages the gradients of one optimizer, using the components that ``Gradients`` made.

    ``sends_missing``: whether gradients that backward has not submitted are sent when averages are
    needed. Otherwise, they are used as they are.
    """

    def __init__(
        self,
        synchroniser: Synchroniser,
        updater: Updater,
        accumulation: Accumulation,
        sender: Sender,
        unsharding: Unsharding,
        delays: Delays,
        sends_missing: bool,
    ) -> None:
        self._synchroniser = synchroniser
        self._updater = updater
        self._accumulation = accumulation
        self._sender = sender
        self._unsharding = unsharding
        self._delays = delays
        self._sends_missing = sends_missing

    def submit(self, slot: Slot) -> Transfer | None:
        """Send the current gradient of ``slot``. Returns the transfer that this step uses.

        It is None in the first steps of a parameter whose averages are delayed. Any access to its
        gradient waits from now on.
        """
        self._sender.submit(slot)
        if slot.delay:
            self._delays.turn(slot)
        slot.known = None
        if slot.transfer is not None:
            slot.known = weakref.ref(slot.transfer.gradient)
            self._mark(slot.transfer)
        return slot.transfer

    def submit_all(self, slots: Iterable[Slot]) -> None:
        """Submit the gradients of ``slots`` that were not submitted yet, and all that is held back.

        Afterwards, all ranks have submitted the same gradients.
        """
        if self._sends_missing:
            self.submit_missing(slots)
        self._synchroniser.flush(())

    def submit_missing(self, slots: Iterable[Slot]) -> None:
        """Submit the gradients of ``slots`` that were not submitted yet."""
        missing = [slot for slot in slots if not slot.is_sent]
        own_memory.separate(missing)
        for slot in missing:
            self.submit(slot)

    def settle(self, slot: Slot) -> None:
        """Wait until a backward pass may add to the gradient of ``slot``.

        It then adds to an average that no ``step()`` has used, or to what the last update has used.
        """
        if slot.update_outstanding:
            self._updater.wait_updated([slot])
        elif slot.transfer is not None:
            self._take_over([slot], STEP)

    def collect(self, slots: Sequence[Slot], send: bool = True, call: Call = SYNCHRONIZE) -> None:
        """Wait until the gradients of ``slots`` are averaged, in place.

        With ``send=False``, gradients that were not submitted stay as they are. ``call`` names the
        script's call, for error messages.
        """
        self.submit_all(slots if send else ())
        self._take_over(slots, call)
        self._forget_dropped(slots)

    def respect_replaced(self, slots: Sequence[Slot], send: bool = True) -> None:
        """If the script has removed or replaced a gradient in flight, use what the script set.

        A parameter whose gradient is now None is not updated. ``send`` means the same as in
        ``collect``. Every rank must have replaced the same gradients.
        """
        replaced = [slot for slot in slots if slot.transfer is not None and slot.is_replaced]
        if replaced:
            self.submit_all(slots if send else ())
            self._take_over(replaced, STEP)
        self._forget_dropped(slots)

    @contextmanager
    def averages(self, parameters: Iterable[Tensor]) -> Iterator[list[tuple[Tensor, slice | None]]]:
        """Yields averaged gradients, each with the shard that this rank has (None: all of it).

        The caller may change them in place within the context. It changes only this rank's shard
        of a sharded gradient. A whole gradient must be changed in the same way on every rank.
        """
        slots = self._accumulation.participants()
        self.submit_all(slots)
        self.respect_replaced(slots)
        self._updater.wait_arrived(slots)
        given = {id(parameter) for parameter in parameters}
        slots = [slot for slot in slots if id(slot.parameter) in given]
        transfers = [slot.transfer for slot in slots if slot.transfer is not None]
        found = [(transfer.gradient, transfer.shard) for transfer in transfers]
        found.extend(
            (slot.parameter.grad, None)
            for slot in slots
            if slot.transfer is None and slot.parameter.grad is not None
        )
        for transfer in transfers:
            pending.unmark(transfer.gradient)
        try:
            yield found
        finally:
            for transfer in transfers:
                self._mark(transfer)

    def _take_over(self, slots: Sequence[Slot], call: Call) -> None:
        """Wait until the gradients that were sent are averaged, then leave them to the script."""
        self._updater.wait_arrived(slots)
        self._unsharding.unshard(
            (
                (slot, slot.transfer.gradient)
                for slot in slots
                if slot.transfer is not None and slot.transfer.shard is not None
            ),
            call,
        )
        for slot in slots:
            if slot.transfer is not None:
                pending.unmark(slot.transfer.gradient)
                slot.transfer = None
                slot.averaged = True
                self._accumulation.restart(slot)

    def forget_error(self, slot: Slot) -> None:
        """Forget what was not sent of a gradient that no ``step()`` will use.

        If averages are delayed, ``step()`` refuses that, and the error is that of a later gradient.
        """
        compression = self._synchroniser.compression
        if compression is not None and not slot.delay:
            compression.forget(slot.name)

    def _forget_dropped(self, slots: Iterable[Slot]) -> None:
        """Forget the errors of averages that the script has dropped by hand."""
        if self._synchroniser.compression is None:
            return
        for slot in slots:
            if slot.averaged and slot.parameter.grad is None:
                self.forget_error(slot)

    def _mark(self, transfer: Transfer) -> None:
        wait = partial(self._touched, transfer)
        pending.mark(transfer.gradient, transfer.slot.gradient_text, wait)

    def _touched(self, transfer: Transfer) -> None:
        """Called when the script accesses a gradient for which ``step()`` was not yet called.

        Raises ``RuntimeError`` within a backward pass that has others to send: it may be on one
        rank alone, and all must send the same ones together.
        """
        if self._synchroniser.holds_back(transfer.slot.name):
            slots = self._accumulation.participants()
            if in_backward() and any(not slot.is_sent for slot in slots):
                raise RuntimeError(
                    f"byteprophet: {transfer.slot.gradient_text} is in flight and was read within "
                    "backward(): read gradients after backward(), when all were sent"
                )
            self.collect(slots, call=TOUCHED)
        else:
            self._updater.wait_arrived([transfer.slot])
            pending.unmark(transfer.gradient)
