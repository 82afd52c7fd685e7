"""The gradients of one optimizer: when each is sent, what comes back, and when it may be cleared.

A hook sees each gradient accumulated; after ``passes`` backward passes it is submitted to the
synchroniser. From then on until it is averaged, or ``step()`` has used it, whoever touches it waits
(``pending.py``). ``collect`` submits what is missing (zeros for a parameter without gradient) and
waits for all averages.

Where the synchroniser averages shares only, a gradient that ``step()`` has used stays *partial*
until it is cleared. Who touches it has it completed first, be it the script or a backward pass that
adds to it; ``collect`` completes all. Every rank must do the same then, as the others have the
rest.

Threads: methods run in the thread that trains, ``_accumulated`` also in autograd's threads,
``_finish`` in the synchroniser's. ``_begin`` guards the iteration flag, as gradients of several
devices may come at once; it is held while updates are waited for, which never want it. All else is
guarded as ``slots.py`` and ``updates.py`` say. Hooks hold everything weakly, so that they die with
their optimizer.
"""

from __future__ import annotations

import functools
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from byteprophet.observe.span_log import process_spans
from byteprophet.torch import flush_points, pending
from byteprophet.torch.completion import Completion
from byteprophet.torch.dense import arranged, share_of
from byteprophet.torch.layer_spans import process_layers
from byteprophet.torch.slots import Slot, Transfer
from byteprophet.torch.synchroniser import Synchroniser
from byteprophet.torch.updates import Updater

_UNCLAIMED_S = 10.0  # at the end of a job, for gradients that no step() was called for


class Gradients:
    """All parameters of an optimizer, as ``slots`` by ``id`` of the parameter.

    ``compression`` has ``compress(tensor)``, giving a tensor and a context, and
    ``decompress(tensor, context)``.
    """

    def __init__(
        self,
        synchroniser: Synchroniser,
        updater: Updater,
        compression: Any,
        passes: int,
        timeout_s: float,
    ) -> None:
        self.slots: dict[int, Slot] = {}
        self._synchroniser = synchroniser
        self._updater = updater
        self._compression = compression
        self._passes = passes
        self._timeout_s = timeout_s
        self.held = False  # backward passes add to gradients and submit none
        self._indices = itertools.count()
        self._begin = threading.Lock()
        self._between_iterations = True

    def manage(self, named_parameters: Iterable[tuple[str, Tensor]]) -> None:
        """Take charge of more parameters; call with the same names on every rank."""
        named_parameters = list(named_parameters)
        self._synchroniser.declare_parameters([*self._named(), *named_parameters])
        names = []
        for name, parameter in sorted(named_parameters, key=lambda named: named[0]):
            slot = Slot(name, parameter, next(self._indices), self._passes)
            self.slots[id(parameter)] = slot
            self._hook(slot)
            names.append(name)
        # As BytePS declares them: parameters are broadcast under the second name.
        self._synchroniser.declare(
            [f"Gradient.{name}" for name in names] + [f"Parameter.{name}" for name in names]
        )

    def release(self, parameters: Iterable[Tensor]) -> None:
        """Let go of parameters."""
        for slot in [slot for p in parameters if (slot := self.slots.get(id(p))) is not None]:
            del self.slots[id(slot.parameter)]
            self._drop_partial(slot)
            if slot.transfer is not None:
                pending.unmark(slot.transfer.gradient)
            for hook in slot.hooks:
                hook.remove()

    def share(self, slot: Slot) -> slice | None:
        """The elements of ``slot``'s parameter that this rank updates; None: all."""
        return self._synchroniser.share(slot.name)

    def own_share(self, slot: Slot) -> slice | None:
        """The elements that would be this rank's if groups were others; None: never a share."""
        synchroniser, elements = self._synchroniser, slot.parameter.numel()
        if not synchroniser.shares or not elements:
            return None
        return share_of(elements, synchroniser.rank, synchroniser.size)

    def set_passes(self, passes: int) -> None:
        """Submit gradients after ``passes`` backward passes from now on."""
        self._passes = passes
        for slot in self.slots.values():
            slot.passes_left = passes

    @property
    def unclaimed(self) -> bool:
        """Whether gradients are on their way, or there, that ``step()`` was not yet called for.

        Or some of the backward passes that are sent together: all ranks have run as many.
        """
        return any(
            slot.unclaimed or slot.passes_left < self._passes for slot in self.slots.values()
        )

    def participants(self) -> list[Slot]:
        """The slots that take part in a step: all but frozen ones without a gradient."""
        slots = []
        for slot in self.slots.values():
            if slot.parameter.requires_grad and not slot.hooks:
                self._hook(slot)
            if slot.parameter.requires_grad or slot.parameter.grad is not None:
                slots.append(slot)
        return slots

    def submit(self, slot: Slot) -> Transfer:
        """Send the gradient that ``slot`` has now."""
        gradient = slot.parameter.grad
        if gradient is None:
            gradient = slot.parameter.grad = torch.zeros_like(slot.parameter, requires_grad=False)
        if gradient.is_sparse or gradient.requires_grad:
            kind = "sparse" if gradient.is_sparse else "itself differentiable (create_graph=True)"
            raise RuntimeError(
                f"byteprophet: the gradient of '{slot.name}' is {kind} and cannot be exchanged"
            )
        share = self._synchroniser.share(slot.name)
        if share is not None:
            gradient = slot.parameter.grad = arranged(gradient, slot.parameter)
        wire, context = self._compression.compress(gradient)
        wire = wire.contiguous() if share is None else arranged(wire, slot.parameter)
        # Another name for the same memory: the synchroniser does not wait for itself.
        transfer = Transfer(
            slot, gradient, wire.detach(), context, in_place=wire is gradient, share=share
        )
        self._drop_partial(slot)
        slot.transfer = transfer
        with self._begin:
            if self._between_iterations:
                self._between_iterations = False
                if self._synchroniser.in_order:
                    flush_points.finish_all()
                self._synchroniser.begin_iteration()
        transfer.iteration = process_spans.iteration
        if gradient.numel() == 0:
            self._updater.arrive(transfer, None)
        else:
            self._synchroniser.submit(
                f"Gradient.{slot.name}",
                transfer.wire,
                priority=slot.priority,
                average=True,
                done=lambda error: self._finish(transfer, error),
            )
        self._mark(transfer)
        return transfer

    def collect(self, slots: Sequence[Slot], send: bool = True) -> None:
        """Wait until the gradients of ``slots`` are averaged, in place.

        ``send=False``: those that were not submitted stay as they are.
        """
        self._settle(slots if send else ())
        self._take_over(slots)

    def respect_replaced(self, slots: Sequence[Slot], send: bool = True) -> None:
        """Where the script has removed or replaced a gradient on its way, what it put there counts.

        ``None`` is no update then. ``send`` as in ``collect``. Every rank must have done the same.
        """
        replaced = [
            slot
            for slot in slots
            if slot.transfer is not None and slot.parameter.grad is not slot.transfer.gradient
        ]
        if replaced:
            self._settle(slots if send else ())
            self._take_over(replaced)

    @contextmanager
    def averages(self, parameters: Iterable[Tensor]) -> Iterator[list[tuple[Tensor, slice | None]]]:
        """Averages of gradients, each with the share of it that is there (None: all of it).

        Within it they may be changed in place: every rank its share, and alike what is whole.
        """
        slots = self.participants()
        self._settle(slots)
        self.respect_replaced(slots)
        self._updater.wait_arrived(slots)
        given = {id(parameter) for parameter in parameters}
        slots = [slot for slot in slots if id(slot.parameter) in given]
        transfers = [slot.transfer for slot in slots if slot.transfer is not None]
        found = [(transfer.gradient, transfer.share) for transfer in transfers]
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

    def _settle(self, slots: Iterable[Slot]) -> None:
        """Submit what is missing: all ranks have submitted the same now."""
        for slot in slots:
            if slot.transfer is None and not slot.averaged:
                self.submit(slot)
        self._synchroniser.flush(())

    def _take_over(self, slots: Sequence[Slot]) -> None:
        """Wait until gradients that were sent are averaged; they are the script's from then on."""
        self._updater.wait_arrived(slots)
        self.complete(
            (slot, slot.transfer.gradient)
            for slot in slots
            if slot.transfer is not None and slot.transfer.share is not None
        )
        for slot in slots:
            if slot.transfer is not None:
                pending.unmark(slot.transfer.gradient)
                slot.transfer = None
                slot.averaged = True
                slot.passes_left = self._passes

    def at_hand(self, slot: Slot) -> Transfer:
        """The gradient that ``slot`` has now, to be used as it is in this rank's share."""
        self._take_partial(slot)
        gradient = slot.parameter.grad
        assert gradient is not None
        share = self._synchroniser.share(slot.name)
        if share is not None:
            gradient = slot.parameter.grad = arranged(gradient, slot.parameter)
        transfer = Transfer(slot, gradient, gradient, None, in_place=True, share=share)
        transfer.iteration = process_spans.iteration
        transfer.arrived.set()
        slot.transfer = transfer
        return transfer

    def keep_partial(self, transfer: Transfer) -> None:
        """``step()`` uses the gradient: until it is cleared, who touches it has it completed."""
        slot = transfer.slot
        slot.partial = transfer.gradient
        complete = self._weakly(Gradients._take_partial, slot)
        pending.mark(transfer.gradient, slot.gradient_text, complete)

    def end_iteration(self, slots: Iterable[Slot]) -> None:
        """``step()`` has used the gradients of ``slots``."""
        for slot in slots:
            slot.averaged = False
            slot.passes_left = self._passes
        self._between_iterations = True

    def zero(
        self, parameters: Iterable[Tensor], zero: Callable[[], None], set_to_none: bool
    ) -> None:
        """Run ``zero``, which clears the gradients of ``parameters``, but not those in flight.

        Gradients that ``step()`` will not use any more are waited for and dropped.
        """
        fresh = []
        slots = [slot for p in parameters if (slot := self.slots.get(id(p))) is not None]
        if self._synchroniser.grouped and any(slot.unclaimed for slot in slots):
            self._settle(self.participants())
        for slot in slots:
            self._drop_partial(slot)
            transfer = slot.transfer
            if slot.update_outstanding:
                # If the transfer is gone by now, the update is over, and `zero` may have it all.
                if transfer is not None and slot.parameter.grad is transfer.gradient:
                    slot.parameter.grad = None
                    fresh.append(slot.parameter)
                continue
            if transfer is not None:
                self._updater.wait_arrived([slot])
                pending.unmark(transfer.gradient)
                slot.transfer = None
            slot.averaged = False
            slot.passes_left = self._passes
        if set_to_none:
            with pending.values():  # no gradient's values are asked for
                zero()
        else:
            zero()
            with pending.values():
                for parameter in fresh:
                    parameter.grad = torch.zeros_like(parameter, requires_grad=False)

    def unmark(self) -> None:
        """Let the gradients be read as they are: the optimizer is gone."""
        for slot in self.slots.values():
            self._drop_partial(slot)
            if slot.transfer is not None:
                pending.unmark(slot.transfer.gradient)

    def wait_unclaimed(self) -> None:
        """Give gradients that no ``step()`` was called for a moment to arrive.

        They never will if the other ranks ended before they had them.
        """
        deadline_s = time.monotonic() + _UNCLAIMED_S
        for slot in self.slots.values():
            if slot.transfer is not None:
                slot.transfer.arrived.wait(max(0.0, deadline_s - time.monotonic()))

    def _named(self) -> list[tuple[str, Tensor]]:
        return [(slot.name, slot.parameter) for slot in self.slots.values()]

    def _hook(self, slot: Slot) -> None:
        parameter = slot.parameter
        if not parameter.requires_grad:
            return
        accumulated = self._weakly(Gradients._accumulated, slot)
        accumulates = self._weakly(Gradients._take_partial, slot)
        slot.hooks = [parameter.register_post_accumulate_grad_hook(accumulated)]  # type: ignore[no-untyped-call]
        if self._synchroniser.shares:
            slot.hooks.append(parameter.register_hook(accumulates))  # type: ignore[no-untyped-call]

    def _weakly(self, method: Callable[[Gradients, Slot], None], slot: Slot) -> Callable[..., None]:
        """``method`` for ``slot``, as long as both live, whatever it is called with."""
        gradients, held = weakref.ref(self), weakref.ref(slot)

        def call(*_: Any) -> None:
            alive, its_slot = gradients(), held()
            if alive is not None and its_slot is not None:
                method(alive, its_slot)

        return call

    def _accumulated(self, slot: Slot) -> None:
        if slot.update_outstanding:
            raise RuntimeError(
                f"byteprophet: a gradient of '{slot.name}' was computed from a forward that ran "
                "before step() changed it: move step() behind the last backward of what came "
                "before, or set BYTEPROPHET_OVERLAP=0"
            )
        if slot.transfer is not None:
            raise RuntimeError(
                f"byteprophet: the gradient of '{slot.name}' was computed more than "
                f"{self._passes} time(s) before step(): raise backward_passes_per_step to "
                "accumulate gradients locally"
            )
        if process_layers.installed:
            process_layers.gradient_ready(slot.name, slot.parameter.nbytes)
        slot.averaged = False
        if self.held:
            return
        slot.passes_left -= 1
        if slot.passes_left <= 0:
            self.submit(slot)

    def _mark(self, transfer: Transfer) -> None:
        pending.mark(transfer.gradient, transfer.slot.gradient_text, lambda: self._take(transfer))

    def _take(self, transfer: Transfer) -> None:
        """The script touches a gradient that ``step()`` was not yet called for."""
        if self._synchroniser.grouped:
            self.collect(self.participants())
        else:
            self._updater.wait_arrived([transfer.slot])
            pending.unmark(transfer.gradient)

    def _take_partial(self, slot: Slot) -> None:
        """Somebody touches, or adds to, a gradient that ``step()`` was called for."""
        if slot.partial is None:
            return
        # All of them: which one is touched first may differ between ranks.
        slots = [each for each in self.slots.values() if each.partial is not None]
        self._updater.wait_updated(slots)
        self.complete(
            (each, each.partial)
            for each in slots
            if each.partial is not None and each.parameter.grad is each.partial
        )
        for each in slots:
            self._drop_partial(each)

    def _drop_partial(self, slot: Slot) -> None:
        if slot.partial is not None:
            pending.unmark(slot.partial)
            slot.partial = None

    def complete(self, gradients: Iterable[tuple[Slot, Tensor]]) -> None:
        """Wait until ``gradients``, or the like, of which each rank has its share, are whole."""
        completions = []
        for slot, gradient in gradients:
            completion = Completion(f"other ranks' shares of what belongs to '{slot.name}'")
            self._synchroniser.complete(slot.name, gradient, done=completion)
            completions.append((slot, completion))
        for slot, completion in completions:
            awaited = functools.partial(self._synchroniser.awaited, f"Gradient.{slot.name}")
            completion.wait(self._timeout_s, awaited)

    def _finish(self, transfer: Transfer, error: BaseException | None) -> None:
        if error is None and not transfer.in_place:
            try:
                with torch.no_grad(), pending.values():
                    transfer.gradient.copy_(
                        self._compression.decompress(transfer.wire, transfer.context)
                    )
            except Exception as failure:  # noqa: BLE001 (whoever waits for it raises it)
                error = failure
        self._updater.arrive(transfer, error)
