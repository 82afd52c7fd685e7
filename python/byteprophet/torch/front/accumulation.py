"""Uses hooks to see gradients accumulate, and reports when a gradient is complete.

Threads: methods run in the training thread, ``_accumulated`` also in autograd's. Hooks refer to
everything weakly, so that they disappear with their optimizer.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping

import torch

from byteprophet.torch.front import own_memory
from byteprophet.torch.front.backward_rules import BackwardRules
from byteprophet.torch.front.delays import Delays
from byteprophet.torch.front.kept import Kept
from byteprophet.torch.front.slots import Slot
from byteprophet.torch.front.unsharding import Unsharding
from byteprophet.torch.front.weakly import weakly
from byteprophet.torch.recording.layer_spans import process_layers


class Accumulation:
    """Counts the backward passes that have added to each gradient of one optimizer.

    Args:
        slots: the optimizer's parameters, by ``id`` of the parameter.
        passes: how many backward passes add to a gradient before it is complete.
        complete: called with the slot of each gradient that is complete; held weakly.
        unsharding: unshards a gradient before a backward pass adds to it. None if gradients are
            never sharded.
        kept: says whether the next step keeps gradients; then none is complete.
        rules: decide which gradients are complete, in place of ``passes``; or None.
        settle: called, under rules, before a backward pass adds to a gradient that may be in
            flight; held weakly.
        begin: called, without rules, when a backward pass has made its first gradient; held weakly.
        delays: refuses a backward pass that a delay would make wrong.
    """

    def __init__(
        self,
        slots: Mapping[int, Slot],
        passes: int,
        complete: weakref.WeakMethod[Callable[[Slot], object]],
        unsharding: Unsharding | None,
        kept: Kept,
        rules: BackwardRules | None,
        settle: weakref.WeakMethod[Callable[[Slot], None]],
        begin: weakref.WeakMethod[Callable[[], None]],
        delays: Delays,
    ) -> None:
        self._slots = slots
        self.passes = passes
        self._complete = complete
        self._unsharding = unsharding
        self._kept = kept
        self._rules = rules
        self._settle = settle
        self._begin = begin
        self._backward = -1  # autograd's number of the last backward pass
        self._delays = delays
        self.held = False  # while True, backward passes add to gradients but complete none

    def set_passes(self, passes: int) -> None:
        """From now on, regard a gradient as complete after ``passes`` backward passes."""
        self.passes = passes
        for slot in self._slots.values():
            slot.passes_left = passes

    def restart(self, slot: Slot) -> None:
        """Regard the next backward pass as the first one that adds to the slot's gradient."""
        slot.passes_left = self.passes

    @property
    def has_begun(self) -> bool:
        """Whether any gradient has received some of its backward passes since ``restart``."""
        return any(slot.passes_left < self.passes for slot in self._slots.values())

    def participants(self) -> list[Slot]:
        """The slots that take part in a step: all except frozen ones without a gradient.

        A gradient that was kept counts.
        """
        slots = []
        for slot in self._slots.values():
            if slot.parameter.requires_grad and not slot.hooks:
                self.hook(slot)
            has_gradient = slot.parameter.grad is not None or slot.kept is not None
            if slot.parameter.requires_grad or has_gradient:
                slots.append(slot)
        return slots

    def hook(self, slot: Slot) -> None:
        """Register hooks on the parameter of ``slot``, unless the parameter is frozen."""
        parameter = slot.parameter
        if not parameter.requires_grad:
            return
        accumulated = weakly(self._accumulated, slot)
        slot.hooks = [parameter.register_post_accumulate_grad_hook(accumulated)]  # type: ignore[no-untyped-call]
        if self._unsharding is not None:
            accumulates = weakly(self._unsharding.take, slot)
            slot.hooks.append(parameter.register_hook(accumulates))  # type: ignore[no-untyped-call]
        if self._rules is not None:
            begins = weakly(self._accumulates, slot)
            slot.hooks.append(parameter.register_hook(begins))  # type: ignore[no-untyped-call]
        first = weakly(self._accumulates_first, slot)
        slot.hooks.append(parameter.register_hook(first))  # type: ignore[no-untyped-call]

    def _accumulates_first(self, slot: Slot) -> None:
        own_memory.before_backward(slot)
        slot.hooks.pop().remove()  # this hook

    def _accumulates(self, slot: Slot) -> None:
        assert self._rules is not None
        self._rules.before(slot.parameter)
        settle = self._settle()
        if settle is not None:
            settle(slot)

    def _note_backward(self) -> None:
        """Tell of a backward pass when it has made its first gradient.

        One that makes graphs of gradients replaces a gradient to add to it, so it cannot be told
        whether the script has replaced it.
        """
        number = torch._C._current_graph_task_id()
        if number == self._backward or self._rules is not None or torch.is_grad_enabled():
            return
        self._backward = number
        begin = self._begin()
        if begin is not None:
            begin()

    def _accumulated(self, slot: Slot) -> None:
        self._note_backward()
        if slot.update_outstanding:
            raise RuntimeError(
                f"byteprophet: a gradient of '{slot.name}' was computed from a forward that ran "
                "before step() changed it: call step() after the last backward of earlier "
                "forwards, or set BYTEPROPHET_OVERLAP=0"
            )
        if slot.transfer is not None:
            raise RuntimeError(
                f"byteprophet: the gradient of '{slot.name}' was computed more than "
                f"{self.passes} time(s) before step(): raise backward_passes_per_step to "
                "accumulate gradients locally"
            )
        self._delays.check_complete(slot)
        if self._kept.holds(slot):
            raise RuntimeError(
                f"byteprophet: the gradient of '{slot.name}' was added to after synchronize(), and "
                f"holds the mean of {self._kept.steps} accumulated steps: call synchronize() after "
                "the last backward"
            )
        own_memory.after_backward(slot)
        if process_layers.installed:
            process_layers.gradient_ready(slot.name, slot.parameter.nbytes)
        slot.averaged = False
        if self.held or self._kept.keeps:
            return
        if self._rules is not None:
            is_complete = self._rules.completes(slot.parameter)
        else:
            slot.passes_left -= 1
            is_complete = slot.passes_left <= 0
        complete = self._complete()
        if is_complete and complete is not None:
            complete(slot)
