"""A script's model under FSDP2: sharded between steps, and whole from forward to backward pass.

Units are all-gathered during the model's forward pass, a few ahead of the one that computes, and
keep their parameters until the backward pass has used them. Gradients are averages, of which each
rank has its shard, as soon as ``backward()`` returns. Without gradients, units are sharded again at
the end of the forward pass. So no rank computes with parameters from before an update.

Torch notes which unit is needed when a module is called. So only calls of the whole model are
allowed, by all ranks alike, and ranks tell each other what they are about to do
(``group.Announcement``).

Reduce-scatters begin in the order in which rank 0's units were ready in the first backward pass,
and all-gathers in that of its first forward pass, unless a strategy says otherwise.

Threads: the training thread, which is autograd's on a CPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.distributed.fsdp import fully_shard

from byteprophet.observe.span_log import SpanLog
from byteprophet.timeline.tables import Kind
from byteprophet.torch.fsdp2.group import Announcement, Group
from byteprophet.torch.fsdp2.transfers import Gathers, Reductions
from byteprophet.torch.fsdp2.units import Unit
from byteprophet.torch.fsdp2.waits import record_waits
from byteprophet.torch.tensors.compiling import stays_eager

_AHEAD = 3
"""Units whose all-gathers, or reduce-scatters, are in flight. Gloo works on two at a time, so that
more would take memory and save little time."""
_EVALUATES, _TRAINS = 0, 1
_DOES = ("calls the model without gradients", "calls the model in training")
_HOOKED = (
    "byteprophet: sync='fsdp2': parameter {!r} has hooks, which would see no gradients, as FSDP2 "
    "makes these of others: remove them"
)


@dataclass(frozen=True)
class Order:
    """Units in the order in which their all-gathers and their reduce-scatters begin."""

    gathers: tuple[int, ...]
    reduces: tuple[int, ...]


class ShardedModel:
    """``model``, of which each rank of ``group`` has a shard from now on.

    ``names``: of the parameters, by id. ``order``: of transfers; None: that in which rank 0 uses
    the units first, of which ``learned`` is told then.

    Attributes:
        model: the model.
        group: the ranks.
        replaced: the sharded parameter in the place of each one that the model had, by its id.
        parameters: the sharded parameters, with their names.
        order: of transfers.
    """

    def __init__(
        self,
        model: nn.Module,
        units: Sequence[Unit],
        names: Mapping[int, str],
        group: Group,
        order: Order | None = None,
        learned: Callable[[Order], None] = lambda order: None,
    ) -> None:
        self.model = model
        self.group = group
        self._title = type(model).__name__  # of before: torch gives it another class
        self._learned = learned
        self._learns = order is None
        self._reductions = Reductions(
            group=group.reduces, begins=self._backward_begins, at_most=_AHEAD
        )
        self._places = [
            (module, name, id(each))
            for module in model.modules()
            for name, each in module._parameters.items()
            if each is not None
        ]
        before = [*dict.fromkeys(each for _, _, each in self._places)]
        root: Any = None
        heads: dict[int, Any] = {}
        for number, unit in sorted(enumerate(units), key=lambda pair: not pair[1].modules):
            modules = list(unit.modules) or [model]
            (heads[number], *_) = fully_shard(modules, mesh=group.mesh, reshard_after_forward=False)
            root = root or (None if unit.modules else model)
        if root is None:
            root = fully_shard(model, mesh=group.mesh, reshard_after_forward=False)
        self._root = root
        self._heads = [heads[number] for number in range(len(units))]
        self.replaced: dict[int, nn.Parameter] = {
            each: parameter
            for module, name, each in self._places
            if (parameter := module._parameters[name]) is not None
        }
        self.parameters = [(names[each], self.replaced[each]) for each in before]
        sharded = dict(self.parameters)
        self.gathers = [Gathers(None, number) for number in range(len(units))]
        for number, head in enumerate(self._heads):
            # Gloo cannot average, so gradients are divided separately, before they are summed.
            head.set_force_sum_reduction_for_comms(True)
            head.set_gradient_divide_factor(1.0)
            head.set_custom_reduce_scatter(
                self._reductions.of(number, [sharded[name] for name in units[number].names])
            )
            head.set_custom_all_gather(self.gathers[number])
            # Ranks whose forward passes use other parameters send zeros.
            head.set_reduce_scatter_unused_params(True, recurse=False)
        count = len(units)
        self._use(order or Order(tuple(range(count)), tuple(reversed(range(count)))))
        self._is_called = False
        self._gathered = 0  # units, in this forward pass
        self._raised: BaseException | None = None  # what was handled before the forward pass
        self._backwards = self._reduced = 0
        self._unsharded: list[tuple[str, Tensor]] = []
        self._spans: SpanLog | None = None
        self._ready: Callable[[str, int], None] = lambda name, size_bytes: None
        self._recording: list[Callable[[], None]] = []  # what ends it
        self._called: list[int] = []
        self._hook(units)

    def _use(self, order: Order) -> None:
        self.order = order
        self._reductions.order = order.reduces

    def _hook(self, units: Sequence[Unit]) -> None:
        for number, unit in enumerate(units):
            for module in unit.modules:
                module.register_forward_pre_hook(self._before_unit(number), prepend=True)
        heads = [module for unit in units for module in unit.modules]
        # Before torch notes that a part is called.
        for module in dict.fromkeys([*heads, *(module for module, _, _ in self._places)]):
            module.register_forward_pre_hook(self._refuse_part, prepend=True)
        self.model.register_forward_pre_hook(stays_eager(self._before), prepend=True)
        self.model.register_forward_hook(stays_eager(self._after), always_call=True)
        self.model.zero_grad = self.zero_grad  # type: ignore[method-assign]

    def _before_unit(self, unit: int) -> Callable[..., None]:
        def before(*_: Any) -> None:
            if not self._is_called:
                return
            if self._learns and unit not in self._called:
                self._called.append(unit)
            self._gather(self.order.gathers.index(unit) + _AHEAD)

        return stays_eager(before)

    def _gather(self, units: int) -> None:
        """Begin the all-gathers of so many units, in their order, that have not begun."""
        for unit in self.order.gathers[self._gathered : units]:
            self._heads[unit].unshard(async_op=True)
        self._gathered = max(self._gathered, units)

    def _refuse_part(self, module: nn.Module, _inputs: Any) -> None:
        if self._is_called or torch.compiler.is_dynamo_compiling():
            return
        if torch._C._current_graph_task_id() == -1:  # a backward pass may recompute a part
            raise RuntimeError(
                f"byteprophet: sync='fsdp2': the script calls {type(module).__name__}, a part of "
                f"the model, whose parameters are whole only while {self._title} is "
                "called: call that, or use another sync"
            )

    def begin_forward(self) -> None:
        """What happens before a forward pass of the model: all-gathers begin."""
        for name, each in self.parameters:
            if each._backward_hooks or each._post_accumulate_grad_hooks:
                raise RuntimeError(_HOOKED.format(name))
        kind = _TRAINS if torch.is_grad_enabled() else _EVALUATES
        for gather in self.gathers:
            gather.spans = self._spans if kind == _TRAINS else None
        left = len(self._reductions.handed_over)  # units, by a backward pass that raised
        announcement = Announcement(self.group, kind, (self._backwards, self._reduced + left))
        if left:
            announcement.check(_DOES)  # other ranks may not have handed over the same units
            self._reductions.finish()
            self._reduced += left
            self._root.reset_iter_state()
        self._gathered = 0
        if torch.is_inference_mode_enabled():
            # What inference_mode() allocates could not be used again in training.
            with torch.inference_mode(False), torch.no_grad():
                for unit in self.order.gathers:
                    self._heads[unit].unshard()
        else:
            self._gather(_AHEAD)
        announcement.check(_DOES)
        self._is_called = True
        self._raised = sys.exc_info()[1]

    def _before(self, _module: nn.Module, _inputs: Any) -> None:
        if not self._is_called:
            self.begin_forward()

    def _after(self, _module: nn.Module, _inputs: Any, _output: Any) -> None:
        if not self._is_called:  # it was refused
            return
        self._is_called = False
        raised = sys.exc_info()[1]
        if raised is not None and raised is not self._raised:
            self._root.reset_iter_state()
        else:
            self._gather(len(self._heads))  # also what other ranks have used, and this one has not
            for head in self._heads:
                head.unshard()
            if not torch.is_grad_enabled():
                self.reshard()
            elif not self._unsharded:
                self._find_unsharded()
        self._raised = None

    def _find_unsharded(self) -> None:
        """Note the parameters that FSDP2 computes with. They stay the same from now on."""
        whole = {each: module._parameters[name] for module, name, each in self._places}
        names = {id(each): name for name, each in self.parameters}
        self._unsharded = [
            (names[id(self.replaced[each])], parameter)
            for each, parameter in whole.items()
            if parameter is not None
        ]
        if self._spans is not None:
            self._listen_to_gradients()

    @property
    def names(self) -> dict[int, str]:
        """The names of parameters, sharded and unsharded, by id."""
        return {id(each): name for name, each in (*self.parameters, *self._unsharded)}

    def record(self, spans: SpanLog | None, ready: Callable[[str, int], None]) -> None:
        """Add spans of transfers and waits to ``spans`` from now on; None: to none.

        ``ready`` is called with the name and the size in bytes of a gradient that is complete on
        this rank, from the second iteration on.
        """
        for end in self._recording:
            end()
        self._recording.clear()
        self._spans = self._reductions.spans = spans
        self._ready = ready
        for number, head in enumerate(self._heads):
            if spans is not None:
                self._recording.append(record_waits(head, spans, f"unit {number}"))
        if spans is not None and self._unsharded:
            self._listen_to_gradients()

    def _listen_to_gradients(self) -> None:
        parameters: list[tuple[str, Any]] = [*self._unsharded]
        for name, each in parameters:
            if each.requires_grad:
                hook = each.register_post_accumulate_grad_hook(
                    lambda of, name=name: self._ready(name, of.nbytes)
                )
                self._recording.append(hook.remove)

    def reshard(self) -> None:
        """Let go of parameters that are whole. What is sharded already stays so."""
        for head in self._heads:
            head.reshard()

    def keep_all(self, kept: bool) -> None:
        """Keep buffers of reduce-scatters as long as in a slow network, if ``kept``."""
        self._reductions.keeps_all = kept

    def hold(self, held: bool) -> None:
        """Only accumulate gradients from now on if ``held``, else exchange them."""
        self._root.set_requires_gradient_sync(not held)

    @property
    def has_held(self) -> bool:
        """Whether gradients wait for a backward pass that exchanges them."""
        return any(each.grad is not None for _, each in self._unsharded)

    def drop_held(self) -> None:
        """Clear gradients that were only accumulated."""
        for _, each in self._unsharded:
            each.grad = None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear all gradients, sharded ones and those that were only accumulated."""
        self.drop_held()
        for _, each in self.parameters:
            if set_to_none:
                each.grad = None
            elif each.grad is not None:
                each.grad.zero_()

    def _backward_begins(self) -> None:
        engine: Any = Variable._execution_engine
        engine.queue_callback(self._backward_ends)  # after FSDP2's own

    def _backward_ends(self) -> None:
        ready = tuple(dict.fromkeys(self._reductions.handed_over))
        self._backwards += 1
        self._reduced += len(self._reductions.handed_over)
        if self._spans is None:
            self._reductions.finish()
        else:
            with self._spans.span(Kind.WAIT, "all gradients"):
                self._reductions.finish()
        for name, each in self._unsharded:
            if each.grad is not None:
                each.grad = None
                raise RuntimeError(
                    f"byteprophet: sync='fsdp2': parameter {name!r} got a gradient after those of "
                    "its unit were reduced, as it is used outside of its modules' calls: put it "
                    "into the root's unit by a strategy, or use another sync"
                )
        if self._learns:
            self._learn(ready)

    def _learn(self, ready: Sequence[int]) -> None:
        """Use the order in which rank 0's units were called, and were ready."""
        self._learns = False
        known = self.order
        root = [unit for unit in known.gathers if self._heads[unit] is self.model]
        gathers = dict.fromkeys((*root, *self._called, *known.gathers))
        reduces = dict.fromkeys((*ready, *known.reduces))
        told = self.group.take_first_ranks([*gathers, *reduces])
        self._use(Order(tuple(told[: len(gathers)]), tuple(told[len(gathers) :])))
        self._learned(self.order)
