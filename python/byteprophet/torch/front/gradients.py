"""The gradients of one optimizer: when they are sent, averaged and cleared.

A hook sees each gradient accumulate (``accumulation.py``). After ``passes`` backward passes, the
gradient is submitted to the synchroniser (``sender.py``). From then on, until it is averaged or
``step()`` has used it, any access to it waits (``averages.py``). A strategy may let a later step
use it (``delays.py``). If the synchroniser only averages shards, a gradient that ``step()`` has
used is unsharded on access (``unsharding.py``).

Threads: methods run in the training thread. ``slots.py`` and ``updates.py`` describe the guards.
"""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from byteprophet.job.owners import Owners
from byteprophet.job.staleness import NO_DELAYS
from byteprophet.tensor_names import gradient_name, parameter_name
from byteprophet.torch.front import dropped
from byteprophet.torch.front.accumulation import Accumulation
from byteprophet.torch.front.averages import Averages
from byteprophet.torch.front.backward_rules import BackwardRules
from byteprophet.torch.front.delays import Delays
from byteprophet.torch.front.kept import Kept
from byteprophet.torch.front.sender import Sender
from byteprophet.torch.front.slots import Slot, Transfer
from byteprophet.torch.front.unsharding import Unsharding
from byteprophet.torch.front.updates import Updater
from byteprophet.torch.sync.completion import SYNCHRONIZE, Call
from byteprophet.torch.sync.synchroniser import Synchroniser
from byteprophet.torch.tensors import pending
from byteprophet.torch.tensors.sparse import values_of

UNCLAIMED_S = 10.0  # how long the end of a job waits for gradients that no step() used


class Gradients:
    """The gradients of an optimizer; ``slots`` holds its parameters, by ``id`` of the parameter.

    ``compression`` is described in ``Sender``, ``passes`` and ``rules`` in ``Accumulation``, and
    ``steps`` in ``Kept``. ``staleness`` has the delays of averages, in steps, by parameter.
    """

    def __init__(
        self,
        synchroniser: Synchroniser,
        updater: Updater,
        compression: Any,
        passes: int,
        timeout_s: float,
        steps: int = 1,
        rules: BackwardRules | None = None,
        sparse: Container[Tensor] = (),
        staleness: Mapping[str, int] = NO_DELAYS,
    ) -> None:
        self.slots: dict[int, Slot] = {}
        self.kept = Kept(self.slots, steps)
        self._synchroniser = synchroniser
        self._sparse = sparse
        self._staleness = staleness
        self.delays = Delays(self.slots, updater)
        self._sends_missing = rules is None
        self._expected = True  # since the script cleared gradients, nothing has averaged them
        self._updater = updater
        self._indices = itertools.count()
        self.unsharding = Unsharding(self.slots, synchroniser, updater, timeout_s)
        self.accumulation = Accumulation(
            self.slots,
            passes,
            weakref.WeakMethod(self.submit),
            self.unsharding if synchroniser.shards else None,
            self.kept,
            rules,
            weakref.WeakMethod(self.settle),
            weakref.WeakMethod(self.begin_backward),
            self.delays,
        )
        self._sender = Sender(
            synchroniser,
            updater,
            self.unsharding,
            compression,
            self.kept,
            allows_graphs=rules is not None,
        )
        self._averages = Averages(
            synchroniser,
            updater,
            self.accumulation,
            self._sender,
            self.unsharding,
            self.delays,
            sends_missing=self._sends_missing,
        )

    def manage(self, named_parameters: Iterable[tuple[str, Tensor]]) -> None:
        """Take over more parameters. Every rank must call this with the same names.

        Raises ``ValueError`` that names a parameter whose gradients cannot be averaged.
        """
        named_parameters = list(named_parameters)
        self._refuse_sparse(named_parameters)
        self._sender.accept(named_parameters)
        known = [(slot.name, slot.parameter) for slot in self.slots.values()]
        self._synchroniser.declare_parameters([*known, *named_parameters])
        names = []
        for name, parameter in sorted(named_parameters, key=lambda named: named[0]):
            passes = self.accumulation.passes
            sparse = self._synchroniser.takes_rows and parameter in self._sparse
            late = self._staleness.get(name, 0)
            if late and parameter in self._sparse:
                raise ValueError(
                    f"the gradients of parameter '{name}' are sparse, and their averages cannot be "
                    "delayed: give it a staleness of 0 in the strategy"
                )
            slot = Slot(name, parameter, next(self._indices), passes, sparse, delay=late)
            self.slots[id(parameter)] = slot
            self.accumulation.hook(slot)
            names.append(name)
        # BytePS declares the same names. It broadcasts parameters under the second one.
        self._synchroniser.declare(
            [gradient_name(name) for name in names] + [parameter_name(name) for name in names]
        )

    def release(self, parameters: Iterable[Tensor]) -> None:
        """Release ``parameters``: remove their slots, marks and hooks.

        Gradients that were submitted but not used by ``step()`` are waited for, because whoever
        has the parameters next sends them in the same memory, under the same names.
        """
        slots = [slot for p in parameters if (slot := self.slots.get(id(p))) is not None]
        self._send_held_back(slots)
        self._updater.wait_arrived([slot for slot in slots if slot.unclaimed])
        for slot in slots:
            del self.slots[id(slot.parameter)]
            self.unsharding.drop(slot)
            self.delays.drop(slot)
            if slot.transfer is not None:
                pending.unmark(slot.transfer.gradient)
            for hook in slot.hooks:
                hook.remove()

    def shard(self, slot: Slot) -> slice | None:
        """The elements of the slot's parameter that this rank updates (None: all of them)."""
        return self._synchroniser.shard(slot.name)

    @property
    def owners(self) -> Owners | None:
        """Who owns what of parameters whose buckets are sharded. None: no bucket ever is."""
        return self._synchroniser.owners if self._synchroniser.shards else None

    @property
    def rank(self) -> int:
        """The rank of this process."""
        return self._synchroniser.rank

    @property
    def unclaimed(self) -> bool:
        """Whether ``step()`` has yet to use gradients that were submitted or partly accumulated."""
        return self.accumulation.has_begun or any(slot.unclaimed for slot in self.slots.values())

    @property
    def expected(self) -> bool:
        """Whether averages are due that no ``step()`` has used.

        A rank may have run no backward pass, or none that counts, and must still take part. So what
        decides is what the script does on all ranks: it has cleared or replaced gradients. If it
        never does that, the gradients of this rank decide.
        """
        if self._sends_missing and (self._expected or self._any_replaced()):
            return True
        return self.unclaimed or (self._sends_missing and self._are_cleared())

    def _any_replaced(self) -> bool:
        slots = self.slots.values()
        return any(slot.parameter.requires_grad and slot.is_replaced for slot in slots)

    def _are_cleared(self) -> bool:
        """Whether the script has set all gradients to None or zeroed them, after their updates.

        The smallest one is looked at first, because it nearly always decides.
        """
        slots = sorted(self.participants(), key=lambda slot: slot.parameter.numel())
        self._updater.wait_updated(slots)
        return all(_is_cleared(slot) for slot in slots)

    def respect_cleared(self) -> None:
        """If the script has cleared all gradients that no ``step()`` has used, begin anew.

        After a step that was skipped, other ranks may have a backward pass, which would note it
        (``begin_backward``), and this one none.
        """
        slots = self.slots.values()
        stale = [slot for slot in slots if slot.unclaimed or (slot.averaged and not slot.submitted)]
        if stale and self._sends_missing and self._are_cleared():
            self._forget_all(stale)

    def participants(self) -> list[Slot]:
        """See ``Accumulation``."""
        return self.accumulation.participants()

    def submit(self, slot: Slot) -> Transfer | None:
        """See ``Averages``."""
        return self._averages.submit(slot)

    def submit_missing(self, slots: Iterable[Slot]) -> None:
        """See ``Averages``."""
        self._averages.submit_missing(slots)

    def submit_all(self, slots: Iterable[Slot]) -> None:
        """See ``Averages``."""
        self._averages.submit_all(slots)

    def take_back(self, slots: Iterable[Slot]) -> None:
        """Wait for the zeros that were sent for ``slots``, and leave them without a gradient."""
        for slot in slots:
            self._forget(slot)
            slot.parameter.grad = slot.known = slot.merged = None
        self._sender.end_iteration()

    def submit_parameter(self, slot: Slot) -> Transfer:
        """See ``Sender``."""
        return self._sender.submit_parameter(slot)

    def settle(self, slot: Slot) -> None:
        """See ``Averages``."""
        self._averages.settle(slot)

    def collect(self, slots: Sequence[Slot], send: bool = True, call: Call = SYNCHRONIZE) -> None:
        """See ``Averages``."""
        self._averages.collect(slots, send, call)
        self._expected = False

    def respect_replaced(self, slots: Sequence[Slot], send: bool = True) -> None:
        """See ``Averages``."""
        self._averages.respect_replaced(slots, send)

    def averages(
        self, parameters: Iterable[Tensor]
    ) -> AbstractContextManager[list[tuple[Tensor, slice | None]]]:
        """See ``Averages``."""
        return self._averages.averages(parameters)

    def unshard(
        self,
        tensors: Iterable[tuple[Slot, Tensor]],
        call: Call,
        owners: Owners | None = None,
    ) -> None:
        """See ``Unsharding``."""
        self.unsharding.unshard(tensors, call, owners)

    def at_hand(self, slot: Slot) -> Transfer:
        """See ``Sender``."""
        return self._sender.at_hand(slot)

    def end_iteration(self, slots: Iterable[Slot]) -> None:
        """End the iteration, after ``step()`` has used the gradients of ``slots``."""
        for slot in slots:
            slot.averaged = slot.submitted = False
            self.accumulation.restart(slot)
        self.kept.used()
        self._sender.end_iteration()
        self._expected = False

    def begin_backward(self) -> None:
        """Take note of what the script did to gradients by itself before a backward pass.

        Averages become parts of sums, so they are sent again: other ranks may add to them. To
        delayed ones, nobody may (``delays.py``). A gradient that was submitted, and that the script
        has cleared since, is waited for and dropped, as ``zero`` does.
        """
        self._forget_all(
            [slot for slot in self.slots.values() if slot.unclaimed and slot.is_replaced]
        )
        for slot in self.slots.values():
            if slot.averaged and slot.is_replaced:
                self._averages.forget_error(slot)
            slot.averaged = slot.averaged and slot.submitted
        self._expected = True

    def zero(
        self, parameters: Iterable[Tensor], zero: Callable[[], None], set_to_none: bool
    ) -> None:
        """Clear the gradients of ``parameters`` by calling ``zero``.

        A gradient that an outstanding update still needs is detached from its parameter, not
        cleared. A gradient that was submitted but not used by ``step()`` is waited for and dropped.
        """
        fresh: list[Slot] = []
        slots = [slot for p in parameters if (slot := self.slots.get(id(p))) is not None]
        self.delays.check_cleared(slots)
        self._send_held_back(slots)
        self._expected = self._expected or bool(slots)
        for slot in slots:
            slot.merged = None
            transfer = slot.transfer
            is_outstanding = slot.update_outstanding
            # If the transfer is gone by now, the update is over, and `zero` may clear it.
            sent = None if transfer is None else transfer.gradient
            if is_outstanding and sent is not None and slot.parameter.grad is sent:
                slot.parameter.grad = None
                fresh.append(slot)
            if set_to_none or slot.parameter.grad is None:
                self.unsharding.leave(slot)
            self.unsharding.drop(slot)
            if not is_outstanding:
                self._forget(slot, is_left=set_to_none)
        if set_to_none:
            with pending.values():  # this reads no values of gradients
                zero()
        else:
            zero()
            with pending.values():
                for slot in fresh:
                    slot.parameter.grad = slot.no_gradient()

    def drop(self) -> None:
        """Remove all marks, and note what is in flight, because the optimizer is gone."""
        for slot in self.slots.values():
            dropped.note(self._travelling(slot), self._synchroniser)
            self.unsharding.drop(slot)
            self.delays.drop(slot)
            if slot.transfer is not None:
                pending.unmark(slot.transfer.gradient)
                slot.transfer = None  # transfers refer to their slots

    def wait_unclaimed(self) -> None:
        """Wait a limited time for submitted gradients that no ``step()`` has used.

        They never arrive if the other ranks ended before submitting them.
        """
        deadline_s = time.monotonic() + UNCLAIMED_S
        for slot in self.slots.values():
            for transfer in self._travelling(slot):
                transfer.arrived.wait(max(0.0, deadline_s - time.monotonic()))

    def _forget_all(self, cleared: Sequence[Slot]) -> None:
        """Wait for the gradients that the script has cleared by hand, and drop them."""
        self.delays.check_cleared(cleared)
        unsent = [slot for slot in self.participants() if not slot.is_sent]
        if unsent and any(slot.unclaimed for slot in cleared):
            raise RuntimeError(
                f"byteprophet: gradients were cleared by hand before that of '{unsent[0].name}' "
                "was sent, so ranks may have sent different ones: clear them by zero_grad()"
            )
        for slot in cleared:
            self._forget(slot)

    def _forget(self, slot: Slot, *, is_left: bool = True) -> None:
        """Wait for a submitted gradient that no ``step()`` will use, and begin anew.

        ``is_left``: the script may go on reading it, by another reference.
        """
        if slot.transfer is not None:
            self._updater.wait_arrived([slot])
            pending.unmark(slot.transfer.gradient)
            if is_left and slot.transfer.shard is not None:
                self.unsharding.leave_shard(slot, slot.transfer.gradient)
        if slot.transfer is not None or slot.averaged:
            self._averages.forget_error(slot)
        slot.transfer = None
        slot.averaged = False
        self.accumulation.restart(slot)

    def _send_held_back(self, slots: Iterable[Slot]) -> None:
        """Send all gradients if some submitted one of ``slots`` waits for others to be sent."""
        unclaimed = [slot.name for slot in slots if slot.unclaimed]
        if any(self._synchroniser.holds_back(name) for name in unclaimed):
            self._averages.submit_all(self.participants())

    def _travelling(self, slot: Slot) -> list[Transfer]:
        """All gradients of ``slot`` that may be in flight."""
        return [each for each in (slot.transfer, *slot.delayed) if each is not None]

    def _refuse_sparse(self, named: Iterable[tuple[str, Tensor]]) -> None:
        if self._synchroniser.takes_rows:
            return
        for name, parameter in named:
            if parameter.requires_grad and parameter in self._sparse:
                raise ValueError(
                    f"the gradients of parameter '{name}' are sparse, which servers cannot "
                    "average: use sync='allreduce', 'dear' or 'dear-planned', or a layer with "
                    "sparse=False"
                )


def _is_cleared(slot: Slot) -> bool:
    """Whether the gradient of ``slot`` is None or zero. One in flight or partial is as sent."""
    gradient = slot.parameter.grad
    if gradient is None:
        return True
    sent = slot.partial if slot.transfer is None else slot.transfer.gradient
    return gradient is not sent and not values_of(gradient).any()
