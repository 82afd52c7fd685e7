"""The front: what an optimizer does with gradients, whichever synchroniser carries them.

Life of a gradient: a hook sees it accumulated, after ``passes`` backward passes it is submitted;
``step()`` submits what is missing (zeros for a parameter without gradient), freezes the
hyperparameters and hands everything to the updater; a module's forward waits for its own
parameters. ``synchronize()`` ends that early: averages are waited for and ``step()`` then runs the
optimizer's own code at once.

``step()`` runs barriered, exactly as BytePS does, while the order is not agreed, when overlap is
switched off, for optimizers that may couple parameters, for step hooks (they see finished
gradients and parameters), and after ``synchronize()``. Only local waiting depends on this; what is
sent, and under which names, never does. So ranks may differ in it.

Threads: methods run in the thread that trains, ``_accumulated`` also in autograd's threads,
``_finish_transfer`` in the synchroniser's. ``_begin`` guards the iteration flag, as gradients of
several devices may come at once; all else is guarded as ``slots.py`` and ``updates.py`` say.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from byteprophet.torch.agreement import agree
from byteprophet.torch.order import ForwardOrder
from byteprophet.torch.settings import RuntimeSettings
from byteprophet.torch.slots import Slot, Transfer
from byteprophet.torch.synchroniser import Synchroniser
from byteprophet.torch.updates import Updater
from byteprophet.torch.view_step import Plan, is_separable, unhooked_step

_serial = itertools.count()


class Front:
    """Gradients, order and updates of one optimizer.

    ``base`` is the optimizer's own class. ``compression`` has ``compress(tensor)``, giving a tensor
    and a context, and ``decompress(tensor, context)``. Knows its optimizer only during ``step()``.
    """

    def __init__(
        self,
        base: type[Optimizer],
        compression: Any,
        passes: int,
        synchroniser: Synchroniser,
        settings: RuntimeSettings,
        separable: bool | None = None,
    ) -> None:
        self._base = base
        self._compression = compression
        self._passes = passes
        self._synchroniser = synchroniser
        self._settings = settings
        self._separable = separable
        self._indices = itertools.count()
        self._slots: dict[int, Slot] = {}
        self._order = ForwardOrder(self._slots)
        self._agreed = False
        self._begin = threading.Lock()
        self._between_iterations = True
        self.updater = Updater(f"byteprophet-updater-{next(_serial)}", settings.timeout_s)
        front = weakref.ref(self)

        def before_forward(module: nn.Module, _inputs: Any) -> None:
            if not torch.compiler.is_compiling() and (alive := front()) is not None:
                alive._before_forward(module)

        hook = nn.modules.module.register_module_forward_pre_hook(before_forward)
        weakref.finalize(self, hook.remove)
        weakref.finalize(self, self.updater.close)

    # -- parameters ------------------------------------------------------------------------------

    def manage(self, named_parameters: Iterable[tuple[str, Tensor]]) -> None:
        """Take charge of more parameters; call with the same names on every rank."""
        names = []
        for name, parameter in sorted(named_parameters, key=lambda named: named[0]):
            slot = Slot(name, parameter, next(self._indices), self._passes)
            self._slots[id(parameter)] = slot
            self._hook(slot)
            names.append(name)
        self._synchroniser.declare(
            [f"Gradient.{name}" for name in names] + [f"Parameter.{name}" for name in names]
        )
        self._order.forget()
        self._agreed = False

    def release(self, parameters: Iterable[Tensor]) -> None:
        """Let go of parameters that another optimizer takes over."""
        taken = [slot for p in parameters if (slot := self._slots.get(id(p))) is not None]
        if taken:
            self.finish()
        for slot in taken:
            del self._slots[id(slot.parameter)]
            if slot.hook is not None:
                slot.hook.remove()
        self._order.forget()

    def manages(self, parameters: Iterable[Tensor]) -> bool:
        """Whether any of ``parameters`` is this optimizer's."""
        return any(id(p) in self._slots for p in parameters)

    def set_passes(self, passes: int) -> None:
        """Submit gradients after ``passes`` backward passes from now on."""
        self._passes = passes
        for slot in self._slots.values():
            slot.passes_left = passes

    # -- gradients -------------------------------------------------------------------------------

    def _hook(self, slot: Slot) -> None:
        if not slot.parameter.requires_grad:
            return
        front, held = weakref.ref(self), weakref.ref(slot)

        def accumulated(_parameter: Tensor) -> None:
            alive, its_slot = front(), held()
            if alive is not None and its_slot is not None:
                alive._accumulated(its_slot)

        slot.hook = slot.parameter.register_post_accumulate_grad_hook(accumulated)  # type: ignore[no-untyped-call]

    def _accumulated(self, slot: Slot) -> None:
        if slot.update_outstanding:
            raise RuntimeError(
                f"byteprophet: '{slot.name}' was read before the optimizer had changed it: by a "
                "forward that ran before step(), or past the module that owns it; set "
                "BYTEPROPHET_OVERLAP=0 for this script"
            )
        if slot.transfer is not None:
            raise RuntimeError(
                f"byteprophet: the gradient of '{slot.name}' was computed more than "
                f"{self._passes} time(s) before step(): raise backward_passes_per_step to "
                "accumulate gradients locally"
            )
        slot.averaged = False
        slot.passes_left -= 1
        if slot.passes_left <= 0:
            self._submit(slot)

    def _submit(self, slot: Slot) -> Transfer:
        gradient = slot.parameter.grad
        if gradient is None:
            gradient = slot.parameter.grad = torch.zeros_like(slot.parameter, requires_grad=False)
        if gradient.is_sparse or gradient.requires_grad:
            kind = "sparse" if gradient.is_sparse else "itself differentiable (create_graph=True)"
            raise RuntimeError(
                f"byteprophet: the gradient of '{slot.name}' is {kind} and cannot be exchanged"
            )
        wire, context = self._compression.compress(gradient)
        transfer = Transfer(slot, gradient, wire.contiguous(), context)
        slot.transfer = transfer
        with self._begin:
            if self._between_iterations:
                self._between_iterations = False
                self._synchroniser.begin_iteration()
        if gradient.numel() == 0:
            self.updater.arrive(transfer, None)
        else:
            self._synchroniser.submit(
                f"Gradient.{slot.name}",
                transfer.wire,
                priority=slot.priority,
                average=True,
                done=lambda error: self._finish_transfer(transfer, error),
            )
        return transfer

    def _finish_transfer(self, transfer: Transfer, error: BaseException | None) -> None:
        if error is None and transfer.wire is not transfer.gradient:
            try:
                with torch.no_grad():
                    transfer.gradient.copy_(
                        self._compression.decompress(transfer.wire, transfer.context)
                    )
            except Exception as failure:  # noqa: BLE001 (whoever waits for it raises it)
                error = failure
        self.updater.arrive(transfer, error)

    def _participants(self) -> list[Slot]:
        """The slots that take part in this step: all but frozen ones without a gradient."""
        slots = []
        for slot in self._slots.values():
            if slot.parameter.requires_grad and slot.hook is None:
                self._hook(slot)
            if slot.parameter.requires_grad or slot.parameter.grad is not None:
                slots.append(slot)
        return slots

    # -- the step --------------------------------------------------------------------------------

    def step(self, optimizer: Optimizer, *, send: bool = True, barrier: bool = False) -> None:
        """Update all parameters, now or behind the scenes; see the top of the file.

        ``send=False``: leave gradients that were not submitted as they are (``skip_synchronize``).
        """
        self.finish()
        self._order.settle()
        slots = self._participants()
        if barrier or not send or not self._may_overlap(optimizer, slots):
            self._collect(slots, send)
            unhooked_step(self._base)(optimizer)
        else:
            self._hand_over(optimizer, slots)
        for slot in slots:
            slot.averaged = False
            slot.passes_left = self._passes
        self._between_iterations = True
        if not self._agreed:
            self._agree()

    def _may_overlap(self, optimizer: Optimizer, slots: Sequence[Slot]) -> bool:
        separable = self._separable
        if separable is None:
            separable = is_separable(optimizer, self._base)
        return (
            self._settings.overlap
            and separable
            and self._agreed
            and self._order.order is not None
            and not any(slot.averaged for slot in slots)
        )

    def _hand_over(self, optimizer: Optimizer, slots: Sequence[Slot]) -> None:
        group_of = {
            id(parameter): number
            for number, group in enumerate(optimizer.param_groups)
            for parameter in group["params"]
        }
        transfers = [slot.transfer or self._submit(slot) for slot in slots]
        for transfer in transfers:
            transfer.slot.parameter.grad = transfer.gradient
        self.updater.hand_over(
            transfers,
            Plan.of(optimizer, self._base),
            [group_of[id(slot.parameter)] for slot in slots],
        )
        self.updater.wait_updated(self._order.orphans)

    def _collect(self, slots: Sequence[Slot], send: bool) -> None:
        """Wait until every gradient that is or must be submitted is averaged, in place."""
        if send:
            for slot in slots:
                if slot.transfer is None and not slot.averaged:
                    self._submit(slot)
        self.updater.wait_arrived(slots)
        for slot in slots:
            if slot.transfer is not None:
                slot.parameter.grad = slot.transfer.gradient
                slot.transfer = None
                slot.averaged = True
                slot.passes_left = self._passes

    def _agree(self) -> None:
        """Make rank 0's order everybody's; if it saw no forward, the next step tries again."""
        slots = list(self._slots.values())
        if not slots:
            return
        place = {slot: number for number, slot in enumerate(slots)}
        order = self._order.order
        agreed = agree(
            self._synchroniser,
            f"byteprophet.order.{slots[0].name}.{len(slots)}",
            None if order is None else [place[slot] for slot in order],
            len(slots),
            self._settings.timeout_s,
        )
        if agreed is not None:
            self._agreed = True
            for position, number in enumerate(agreed):
                slots[number].priority = -1 - position

    # -- waits and flush points --------------------------------------------------------------------

    def _before_forward(self, module: nn.Module) -> None:
        self._order.touch(module)
        if not self.updater.outstanding:
            return
        if module.training or torch.is_grad_enabled():
            self.updater.wait_updated(self._order.needed(module))
        else:
            # Inference may take fused paths that read parameters past their modules.
            self.finish()

    def finish(self) -> None:
        """Wait until no update is outstanding."""
        if self.updater.outstanding:
            self.updater.wait_updated(self._slots.values())

    def synchronize(self) -> None:
        """Wait until every parameter's ``grad`` is the average over all ranks."""
        self.finish()
        self._collect(self._participants(), send=True)

    @property
    def gradients_submitted(self) -> bool:
        """Whether gradients are on their way, or there, that ``step()`` was not yet called for."""
        return any(
            slot.transfer is not None and not slot.update_outstanding
            for slot in self._slots.values()
        )

    def stop(self) -> None:
        """Wait until nothing of this optimizer travels any more, then let threads end."""
        self.finish()
        self.updater.wait_arrived(self._slots.values())
        self._synchroniser.close()

    def zero_gradients(
        self, parameters: Iterable[Tensor], zero: Callable[[], None], set_to_none: bool
    ) -> None:
        """Run ``zero``, which clears the gradients of ``parameters``, but not those in flight.

        Gradients that ``step()`` will not use any more are waited for and dropped.
        """
        slots = [slot for p in parameters if (slot := self._slots.get(id(p))) is not None]
        fresh = []
        for slot in slots:
            transfer = slot.transfer
            if slot.update_outstanding:
                if transfer is not None and slot.parameter.grad is transfer.gradient:
                    slot.parameter.grad = None
                    fresh.append(slot.parameter)
            else:
                self.updater.wait_arrived([slot])
                slot.transfer = None
                slot.averaged = False
                slot.passes_left = self._passes
        zero()
        if not set_to_none:
            for parameter in fresh:
                parameter.grad = torch.zeros_like(parameter, requires_grad=False)
