"""The front: an optimizer whose updates happen behind the scenes, whichever synchroniser it has.

``step()`` freezes the hyperparameters and hands every gradient, arrived or not, to the updater; a
module's forward waits for its own parameters. ``synchronize()`` ends that early: it waits for the
averages, and ``step()`` then runs the optimizer's own code at once.

``step()`` runs barriered, exactly as BytePS does, while the order is not agreed, when overlap is
switched off, for optimizers that may couple parameters, for step hooks (they see finished
gradients and parameters), and after ``synchronize()``. Only local waiting depends on this; what is
sent, and under which names, never does. So ranks may differ in it. Where each rank updates a share
of the parameters, all steps are handed over, and a barriered one is waited for; ``synchronize()``,
which a pre hook of ``step()`` calls, has shares completed there, so that all ranks call it or none.

Threads: everything here runs in the thread that trains; ``_before_forward`` also where replicas of
the model run, if there are any.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from byteprophet.observe.span_log import process_spans
from byteprophet.runtime_settings import RuntimeSettings
from byteprophet.timeline.tables import Kind
from byteprophet.torch import pending, sharded_state
from byteprophet.torch.agreement import agree
from byteprophet.torch.gradients import Gradients
from byteprophet.torch.layer_spans import process_layers
from byteprophet.torch.order import ForwardOrder
from byteprophet.torch.slots import Slot
from byteprophet.torch.synchroniser import Synchroniser
from byteprophet.torch.updates import Updater
from byteprophet.torch.view_step import Plan, is_separable, unhooked_step

if TYPE_CHECKING:
    from byteprophet.torch.between_steps import BetweenSteps

_serial = itertools.count()


class Front:
    """Order, waits and updates of one optimizer, which it knows only during ``step()``.

    ``base`` is the optimizer's own class; ``separable`` as in ``DistributedOptimizer``;
    ``between_steps`` is told of every step.
    """

    def __init__(
        self,
        base: type[Optimizer],
        compression: Any,
        passes: int,
        synchroniser: Synchroniser,
        settings: RuntimeSettings,
        separable: bool | None = None,
        between_steps: BetweenSteps | None = None,
    ) -> None:
        self._base = base
        self._between_steps = between_steps
        self._settings = settings
        self._separable = separable
        self._agreed = False
        self._narrowed: tuple[int, int] | None = None  # the groups and slots that the state fits
        self.synchroniser = synchroniser
        self.serial = next(_serial)
        self.updater = Updater(
            f"byteprophet-updater-{self.serial}", synchroniser, settings.timeout_s
        )
        self.gradients = Gradients(
            synchroniser, self.updater, compression, passes, settings.timeout_s
        )
        self._order = ForwardOrder(self.gradients.slots)
        front = weakref.ref(self)

        def before_forward(module: nn.Module, _inputs: Any) -> None:
            if not torch.compiler.is_compiling() and (alive := front()) is not None:
                alive._before_forward(module)

        hook = nn.modules.module.register_module_forward_pre_hook(before_forward)
        weakref.finalize(self, hook.remove)
        if process_layers.installed:
            process_layers.hook_last()
        weakref.finalize(self, self.updater.close)
        weakref.finalize(self, self.gradients.unmark)

    def manage(self, named_parameters: Iterable[tuple[str, Tensor]]) -> None:
        """Take charge of more parameters; call with the same names on every rank."""
        if self.synchroniser.grouped and self.gradients.unclaimed:
            self.synchronize()
        self.gradients.manage(named_parameters)
        if self.gradients.slots:
            # Now, not when it is first sent: a rank that joins later declares the same names.
            self.synchroniser.declare([self._order_name()])
            if self._between_steps is not None:
                self._between_steps.declare()
        self._order.forget()
        self._agreed = False

    @property
    def settled(self) -> bool:
        """Whether nothing changes between steps any more."""
        return self._between_steps is None or self._between_steps.settled

    def release(self, parameters: Sequence[Tensor]) -> None:
        """Let go of parameters that another optimizer takes over."""
        if self.manages(parameters):
            self.finish()
            self.gradients.release(parameters)
            self._order.forget()

    def manages(self, parameters: Iterable[Tensor]) -> bool:
        """Whether any of ``parameters`` is this optimizer's."""
        return any(id(p) in self.gradients.slots for p in parameters)

    def step(self, optimizer: Optimizer, *, send: bool = True, barrier: bool = False) -> None:
        """Update all parameters, now or behind the scenes; see the top of the file.

        ``send=False``: leave gradients that were not submitted as they are (``skip_synchronize``).
        """
        self.settle_state(optimizer)
        self._order.settle()
        groups = self._groups(optimizer)
        slots = [slot for slot in self.gradients.participants() if slot in groups]
        barrier = barrier or not send or not self._may_overlap(optimizer, slots)
        if barrier and not self.synchroniser.shares:
            self.gradients.collect(slots, send)
            with process_spans.span(Kind.UPDATE, "optimizer"):
                unhooked_step(self._base)(optimizer)
        else:
            self._hand_over(optimizer, slots, groups, send)
        if barrier:
            self.finish()
        self.gradients.end_iteration(slots)
        if not self._agreed:
            self._agree()
        if self._between_steps is not None and self.gradients.slots:
            self._between_steps.after_step(self._first_name(), self._agreed)

    def synchronize(self) -> None:
        """Wait until every parameter's ``grad`` is the average over all ranks."""
        self.finish()
        self.gradients.collect(self.gradients.participants())

    def shares_all(self, parameters: Sequence[Tensor]) -> bool:
        """Whether ``parameters`` are all ours, with gradients that may be shares.

        A frozen one without a gradient counts nowhere, whosever it is.
        """
        ours = self.gradients.slots.keys()
        counting = {id(p) for p in parameters if p.requires_grad or p.grad is not None}
        return (
            self.synchroniser.shares
            and self.gradients.unclaimed
            and bool(counting)
            and counting <= ours
        )

    def averages(
        self, parameters: Iterable[Tensor]
    ) -> AbstractContextManager[list[tuple[Tensor, slice | None]]]:
        """See ``Gradients``."""
        self.finish()
        return self.gradients.averages(parameters)

    @property
    def timeout_s(self) -> float:
        """How long other ranks are waited for."""
        return self._settings.timeout_s

    def needed(self, module: nn.Module) -> Iterator[Slot]:
        """The parameters of this optimizer that ``module`` needs before it runs."""
        return self._order.needed(module)

    def agree_again(self) -> None:
        """Take rank 0's order at the next step: ranks may have come and gone."""
        self._agreed = False
        if self._between_steps is not None:
            self._between_steps.restart()

    def finish(self) -> None:
        """Wait until no update is outstanding."""
        if self.updater.outstanding:
            self.updater.wait_updated(self.gradients.slots.values())

    def drain(self) -> None:
        """Wait until nothing of this optimizer travels any more."""
        self.finish()
        self.synchroniser.flush(())
        self.gradients.wait_unclaimed()
        if self._between_steps is not None:
            self._between_steps.drain()

    def widen_state(self, optimizer: Optimizer) -> None:
        """Keep the whole state, until the next step. Every rank must do so at the same place."""
        self.settle_state(optimizer)
        if self.synchroniser.shares:
            with sharded_state.whole(optimizer, self.gradients):
                state = optimizer.state
            optimizer.state = state
            self._narrowed = None

    def _before_forward(self, module: nn.Module) -> None:
        self._order.touch(module)
        if not self.updater.outstanding:
            return
        process_layers.before_wait(module)
        if module.training or torch.is_grad_enabled():
            self.updater.wait_updated(self._order.needed(module))
        else:
            # Inference may take fused paths that read parameters past their modules.
            self.finish()

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

    def _groups(self, optimizer: Optimizer) -> dict[Slot, int]:
        """Which parameter group each slot belongs to now."""
        groups = {}
        for number, group in enumerate(optimizer.param_groups):
            for parameter in group["params"]:
                slot = self.gradients.slots.get(id(parameter))
                if slot is None:
                    raise RuntimeError(
                        "byteprophet: a parameter was put into a group past add_param_group(), or "
                        "another DistributedOptimizer has taken it over"
                    )
                groups[slot] = number
        return groups

    def _hand_over(
        self,
        optimizer: Optimizer,
        slots: Sequence[Slot],
        groups: Mapping[Slot, int],
        send: bool,
    ) -> None:
        self.gradients.respect_replaced(slots, send)
        transfers = []
        for slot in slots:
            if slot.transfer is not None or (send and not slot.averaged):
                transfer = slot.transfer or self.gradients.submit(slot)
                if transfer.share is not None:
                    self.gradients.keep_partial(transfer)
            elif slot.parameter.grad is not None:
                transfer = self.gradients.at_hand(slot)
            else:
                continue
            transfers.append(transfer)
        slots = [transfer.slot for transfer in transfers]
        self.synchroniser.flush([slot.name for slot in slots])
        self.updater.hand_over(
            transfers,
            Plan.of(optimizer, self._base),
            [groups[slot] for slot in slots],
            keep=self,
        )
        self.updater.wait_updated(self._order.orphans)
        self.updater.wait_updated(slot for slot in slots if not pending.can_mark(slot.parameter))

    def settle_state(self, optimizer: Optimizer) -> None:
        """Wait until no update is outstanding; of the state keep what is this rank's by now."""
        self.finish()
        if not self.synchroniser.shares:
            return
        narrowed = self.synchroniser.arrangement, len(self.gradients.slots)
        if narrowed != self._narrowed:
            sharded_state.narrow(optimizer, self.gradients)
        self._narrowed = narrowed

    def _agree(self) -> None:
        """Make rank 0's order everybody's; if it saw no forward, the next step tries again."""
        slots = list(self.gradients.slots.values())
        if not slots:
            return
        place = {slot: number for number, slot in enumerate(slots)}
        order = self._order.order
        agreed = agree(
            self.synchroniser,
            self._order_name(),
            None if order is None else [place[slot] for slot in order],
            len(slots),
            self._settings.timeout_s,
        )
        if agreed is not None:
            self._agreed = True
            for position, number in enumerate(agreed):
                slots[number].priority = -1 - position
            self.synchroniser.agreed([slots[number].name for number in agreed])

    def _order_name(self) -> str:
        return f"byteprophet.order.{self._first_name()}.{len(self.gradients.slots)}"

    def _first_name(self) -> str:
        return next(iter(self.gradients.slots.values())).name
