"""The front: an optimizer whose updates run asynchronously, with any synchroniser.

``step()`` freezes the hyperparameters and hands every gradient, arrived or not, to the updater. A
module's forward waits for its own parameters. ``synchronize()`` waits for the averages, and the
following ``step()`` runs the optimizer's own code at once.

``step()`` waits for all gradients, exactly as in BytePS, in these cases: the order is not agreed
yet, overlap is switched off, the optimizer may couple parameters, there are step hooks (which see
finished gradients and parameters), or ``synchronize()`` was called. This affects only local
waiting, never what is sent or under which names. So ranks may differ in it. If each rank updates a
shard of the parameters, every step is handed to the updater, and a step that must wait waits for
the updates. In this mode, ``synchronize()`` unshards gradients, so all ranks must call it or none.
If ``step()`` has pre hooks, it calls ``synchronize()`` itself.

A strategy may let only one in N steps exchange and update. The others only keep gradients
(``kept.py``): nothing is sent, nothing waits, and ``synchronize()`` does nothing.

A strategy may also let step t update parameters by the averages of iteration t - k (``delays.py``).

Threads: everything here runs in the training thread; ``_before_forward`` also runs where replicas
of the model run, if there are any.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from byteprophet.job.staleness import NO_DELAYS
from byteprophet.observe.span_log import process_spans
from byteprophet.runtime_settings import RuntimeSettings
from byteprophet.tensor_names import gradient_name
from byteprophet.timeline.tables import Kind
from byteprophet.torch.front import other_synchronisers, sharded_state
from byteprophet.torch.front.backward_rules import BackwardRules
from byteprophet.torch.front.beginning import Beginning, have_gradients
from byteprophet.torch.front.cores import Cores
from byteprophet.torch.front.gradients import Gradients
from byteprophet.torch.front.interruptions import Interruptions
from byteprophet.torch.front.local_sgd import OWN_STATE, LocalSgd, only_averaged
from byteprophet.torch.front.order import ForwardOrder
from byteprophet.torch.front.order_agreement import OrderAgreement
from byteprophet.torch.front.slots import Slot, Transfer
from byteprophet.torch.front.step_arguments import NO_ARGUMENTS, Closure, StepArguments
from byteprophet.torch.front.updates import Updater
from byteprophet.torch.front.view_step import FrozenStep, is_separable
from byteprophet.torch.recording.layer_spans import process_layers
from byteprophet.torch.retuning.between_steps import BetweenSteps
from byteprophet.torch.sync.completion import SYNCHRONIZE, Call
from byteprophet.torch.sync.synchroniser import Synchroniser
from byteprophet.torch.tensors import module_calls, pending

_serial = itertools.count()
_ADD_PARAM_GROUP = Call("called add_param_group()", "state")


class Front:
    """The forward order, waits and updates of one optimizer.

    The front keeps no reference to the optimizer: ``step()`` and other methods receive it. ``base``
    is the optimizer's original class. ``separable`` means the same as in ``DistributedOptimizer``.
    ``between_steps`` is told of every step that updates: one in ``accumulation``. ``rules`` decide
    which gradients are sent. ``step()`` then uses the others as they are, also those of parameters
    that were never given to ``manage``. ``sparse`` has the parameters whose gradients are sparse.
    ``staleness`` has the delays of averages, in steps, by parameter. ``local_steps``: after so many
    steps, parameters are averaged (``local_sgd.py``); 0: gradients are.
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
        accumulation: int = 1,
        rules: BackwardRules | None = None,
        sparse: Container[Tensor] = (),
        staleness: Mapping[str, int] = NO_DELAYS,
        local_steps: int = 0,
    ) -> None:
        self._base = base
        self.sends_missing = rules is None
        self._between_steps = between_steps
        self._settings = settings
        self._separable = separable
        self._narrowed: tuple[int, int] | None = None  # layout version and number of slots
        self._steps = 0
        self._interruptions = Interruptions()
        self._cores = Cores()
        self.synchroniser = synchroniser
        self.serial = next(_serial)
        self.updater = Updater(
            f"byteprophet-updater-{self.serial}", synchroniser, settings.timeout_s
        )
        self.gradients = Gradients(
            synchroniser,
            self.updater,
            compression,
            passes,
            settings.timeout_s,
            accumulation,
            rules,
            sparse,
            staleness,
        )
        self._kept = self.gradients.kept
        self._local = LocalSgd(local_steps)
        self._trained: set[Slot] = set()  # under local SGD, since the last average
        if self._local:
            self.gradients.accumulation.held = True
        self._order = ForwardOrder(self.gradients.slots)
        self._agreement = OrderAgreement(self.gradients.slots, self._order, synchroniser)
        self._beginning = Beginning(self.gradients.slots, synchroniser)
        self._others: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # other synchronisers
        front = weakref.ref(self)

        def before_forward(module: nn.Module, _inputs: Any) -> None:
            if (alive := front()) is not None:
                alive._before_forward(module)

        weakref.finalize(self, module_calls.listen(before_forward))
        weakref.finalize(self, self.updater.close)
        weakref.finalize(self, self.gradients.drop)

    def manage(self, named_parameters: Iterable[tuple[str, Tensor]]) -> None:
        """Take over more parameters. Every rank must call this with the same names."""
        if self.synchroniser.bucketed and self.gradients.unclaimed:
            self.synchronize()
        self.gradients.delays.wait()
        self.gradients.manage(named_parameters)
        if self.gradients.slots:
            self._agreement.declare()
            self._beginning.declare()
            if self._between_steps is not None:
                self._between_steps.declare()
            self.synchroniser.declare_buffers()
        self._order.forget()
        self._agreement.reached = False

    @property
    def settled(self) -> bool:
        """Whether tuning and planning between steps have come to an end."""
        return self._between_steps is None or self._between_steps.settled

    def release(self, parameters: Sequence[Tensor]) -> None:
        """Release parameters that another optimizer takes over."""
        if self.manages(parameters):
            self.finish()
            self.gradients.delays.wait()
            taken = "another optimizer takes over their parameters"
            self.gradients.delays.warn_unused(taken)
            self._kept.warn_unused(taken)
            self._local.warn_apart("another optimizer takes them over, as they are on rank 0")
            self.synchroniser.separate()
            self.gradients.release(parameters)
            self._order.forget()
            if not self.gradients.slots:
                self._kept.used()
                self._local.load(0)

    def manages(self, parameters: Iterable[Tensor]) -> bool:
        """Whether any of ``parameters`` is this optimizer's."""
        return any(id(p) in self.gradients.slots for p in parameters)

    def step(
        self,
        optimizer: Optimizer,
        arguments: StepArguments = NO_ARGUMENTS,
        *,
        send: bool = True,
        barrier: bool = False,
    ) -> Any:
        """Update all parameters, either now or asynchronously (see the top of the file).

        With ``send=False`` (``skip_synchronize``), gradients that were not submitted are used as
        they are. With ``barrier=True``, all updates are finished when this returns. Returns what
        the optimizer's own ``step`` returns for ``arguments``, if it runs now.
        """
        if arguments.closure is not None:
            self._refuse_evaluating()
        if self._kept.keeps:
            self._kept.keep(self.gradients.participants())
            return None
        if self._local:
            return self._step_locally(optimizer, arguments, barrier)
        self.settle_state(optimizer)
        self._steps += 1
        self._order.settle()
        if arguments.closure is not None:
            return self._step_evaluating(optimizer, arguments, arguments.closure, send)
        slots, groups = self._taking_part(optimizer)
        self.gradients.delays.check(slots)
        if not send:
            self._kept.merge_unsent(slots)
        elif not self._has_begun(slots):
            self._kept.used()
            return arguments.run(self._base, optimizer)
        barrier = barrier or not send or not self._may_overlap(optimizer, slots)
        send = send and self.sends_missing
        result = None
        if barrier and not self.synchroniser.shards:
            self.gradients.collect(slots, send)
            with process_spans.span(Kind.UPDATE, "optimizer"):
                result = arguments.run(self._base, optimizer)
        else:
            self._hand_over(optimizer, slots, groups, send)
        if barrier:
            self.finish()
        self._end_step(slots)
        return result

    def _step_evaluating(
        self, optimizer: Optimizer, arguments: StepArguments, closure: Closure, send: bool
    ) -> Any:
        """Let the optimizer's own ``step`` update now, which may evaluate ``closure`` repeatedly.

        Gradients are averages when an evaluation returns, and those of a backward pass before
        ``step()`` are averages from the start. All ranks must evaluate equally often.
        """
        slots, _ = self._taking_part(optimizer)
        if any(slot.unclaimed for slot in slots):
            self.gradients.collect(slots, send)
        evaluated_ns = process_spans.clock()

        def evaluate(*positional: Any, **named: Any) -> Any:
            nonlocal evaluated_ns
            loss = closure(*positional, **named)
            self.gradients.respect_cleared()
            slots, _ = self._taking_part(optimizer)
            if not send or self._has_begun(slots):
                self.gradients.collect(slots, send)
            evaluated_ns = process_spans.clock()
            return loss

        result = arguments.with_closure(evaluate).run(self._base, optimizer)
        process_spans.add(Kind.UPDATE, "optimizer", evaluated_ns, process_spans.clock())
        slots, _ = self._taking_part(optimizer)
        self._end_step(slots)
        return result

    def _refuse_evaluating(self) -> None:
        """Raise ``RuntimeError`` if not every evaluation of a closure can be exchanged."""
        if self.accumulates or self.delays:
            what = "accumulates steps" if self.accumulates else "delays averages"
            raise RuntimeError(
                f"byteprophet: {self._base.__name__} may evaluate its closure several times, and "
                f"the strategy {what}: compute the gradients first, then call step() without a "
                "closure"
            )

    def _taking_part(self, optimizer: Optimizer) -> tuple[list[Slot], dict[Slot, int]]:
        """The slots that take part in a step, and the group to which each slot belongs."""
        groups = self._groups(optimizer)
        participants = self.gradients.participants()
        if self.sends_missing:
            _refuse_removed(slot for slot in participants if slot not in groups)
        return [slot for slot in participants if slot in groups], groups

    def make_state(self, optimizer: Optimizer) -> None:
        """Let the optimizer's own code make its state, of the gradients as they are.

        This is no step of training: nothing is sent, and nothing is counted.
        """
        self.finish()
        self._base.step(optimizer)
        self._narrowed = None  # the state is whole

    def _has_begun(self, slots: Sequence[Slot]) -> bool:
        """Whether any rank has had gradients (``beginning.py``). Sends those of ``slots`` before.

        Delayed averages of zeros count, as steps of their delays do.
        """
        if self._beginning.is_over or not self.sends_missing or not slots or self.delays:
            return True
        mine = have_gradients(slots)
        self.gradients.submit_all(slots)
        if self._beginning.has_begun(mine, self._settings.timeout_s):
            return True
        self.gradients.take_back(slots)
        return False

    def _end_step(self, slots: Sequence[Slot]) -> None:
        self.gradients.end_iteration(slots)
        if not self._agreement.reached:
            self._agreement.agree(self._settings.timeout_s)
        if self._between_steps is not None and self.gradients.slots:
            first = next(iter(self.gradients.slots.values()))
            self._between_steps.after_step(first.name, self._agreement.reached)

    def synchronize(self, call: Call = SYNCHRONIZE) -> None:
        """Wait until every parameter's ``grad`` is the average over all ranks.

        ``call`` names the script's call, for error messages. Does nothing if the next step keeps
        gradients, or if no gradients are averaged.
        """
        if self._kept.keeps or self._local:
            return
        self.finish()
        self.gradients.respect_cleared()
        slots = self.gradients.participants()
        if self._has_begun(slots):
            self.gradients.collect(slots, call=call)

    def shards_all(self, parameters: Sequence[Tensor]) -> bool:
        """Whether this optimizer manages all ``parameters`` and their gradients may be shards.

        Frozen parameters without a gradient are ignored.
        """
        ours = self.gradients.slots.keys()
        counting = {id(p) for p in parameters if p.requires_grad or p.grad is not None}
        return self.synchroniser.shards and bool(counting) and counting <= ours and self.expected

    def averages(
        self, parameters: Iterable[Tensor]
    ) -> AbstractContextManager[list[tuple[Tensor, slice | None]]]:
        """See ``Gradients``."""
        self.finish()
        self.gradients.respect_cleared()
        if not self._has_begun(self.gradients.participants()):
            return nullcontext([])
        return self.gradients.averages(parameters)

    @property
    def accumulates(self) -> bool:
        """Whether some steps keep gradients."""
        return self._kept.steps > 1

    @property
    def compresses(self) -> bool:
        """Whether some gradients travel compressed."""
        return self.synchroniser.compression is not None

    @property
    def delays(self) -> bool:
        """Whether averages of some parameters are used by later steps."""
        return bool(self.gradients.delays)

    @property
    def averages_parameters(self) -> bool:
        """Whether parameters are averaged in place of gradients."""
        return bool(self._local)

    @property
    def local(self) -> LocalSgd:
        """When parameters are averaged in place of gradients, if they are."""
        return self._local

    def warn_saved(self, parameters: Iterable[Tensor]) -> None:
        """Warn once if ``parameters``, which the script saves, are this rank's own now."""
        if self._local and self.manages(parameters):
            self._local.warn_apart(OWN_STATE)

    def load_local(self, done: int) -> None:
        """Go on ``done`` steps after an average of parameters.

        The next average includes all that are not frozen: the state does not say which were trained
        since.
        """
        self._local.load(done)
        self._trained.clear()
        if done:
            slots = self.gradients.slots.values()
            self._trained.update(each for each in slots if each.parameter.requires_grad)

    @property
    def keeps(self) -> bool:
        """Whether the next step keeps gradients."""
        return self._kept.keeps

    @property
    def timeout_s(self) -> float:
        """How long to wait for other ranks, in seconds."""
        return self._settings.timeout_s

    @property
    def waited_ns(self) -> int:
        """How long the training thread has waited for updates in total."""
        return self.updater.waited_ns

    @property
    def expected(self) -> bool:
        """Whether averages are due that no ``step()`` has used."""
        return not self._local and self.gradients.expected

    def parameter_names(self) -> dict[int, str]:
        """The names of the parameters, by ``id`` of the parameter."""
        return {key: slot.name for key, slot in self.gradients.slots.items()}

    def needed_positions(self, module: nn.Module) -> Iterator[int]:
        """The forward-order positions of the parameters that ``module`` needs before it runs."""
        return (-1 - slot.priority for slot in self._order.needed(module))

    def zero(
        self, parameters: Iterable[Tensor], zero: Callable[[], None], set_to_none: bool
    ) -> None:
        """See ``Gradients``."""
        self.gradients.zero(parameters, zero, set_to_none)

    def agree_again(self) -> None:
        """Agree on rank 0's order again at the next step, because the ranks may have changed."""
        self._agreement.reached = False
        self._beginning.is_over = False
        self._kept.restart()
        self.synchroniser.resumed()
        if self._between_steps is not None:
            self._between_steps.restart()

    def finish(self) -> None:
        """Wait until no update is outstanding."""
        if self.updater.outstanding or self.updater.has_failed:
            self.updater.wait_updated(self.gradients.slots.values())

    def finish_averages(self) -> None:
        """Wait until delayed averages of earlier iterations have arrived."""
        self.gradients.delays.wait_earlier()

    def awaited(self) -> str:
        """Name whom an outstanding update seems to wait for; "" if none is outstanding."""
        for slot in self.gradients.slots.values():
            if slot.update_outstanding:
                return self.synchroniser.awaited(gradient_name(slot.name))
        return ""

    def before_compiling(self) -> None:
        """Finish all updates, because torch is about to compile."""
        if self.updater.outstanding:
            self.finish()
            self._interruptions.note(self._steps)

    def drain(self) -> None:
        """Wait until no transfer of this optimizer is in flight."""
        self.finish()
        self.synchroniser.flush(())
        self.gradients.wait_unclaimed()
        self._kept.warn_unused("no update will use them")
        self._local.warn_apart("they stay this rank's own")
        if self._between_steps is not None:
            self._between_steps.drain()

    def widen_state(self, optimizer: Optimizer) -> None:
        """Unshard the optimizer state until the next step. All ranks must call this together."""
        self.settle_state(optimizer)
        if self.synchroniser.shards:
            with sharded_state.whole(optimizer, self.gradients, _ADD_PARAM_GROUP):
                state = optimizer.state
            optimizer.state = state
            self._narrowed = None

    def _before_forward(self, module: nn.Module) -> None:
        if not self._order.knows(module) and self.synchroniser.size > 1:
            self._note_synchroniser(module)
        self._order.touch(module)
        if module in self._others:
            # DistributedDataParallel holds the parameters that it was made with.
            other_synchronisers.refuse_module(
                module, self._parameters_by_name(), may_replace=self.sends_missing
            )
        if not (self.updater.outstanding or self.updater.has_failed):
            return
        process_layers.before_wait(module)
        if module.training or torch.is_grad_enabled():
            self.updater.wait_updated(self._order.needed(module))
        else:
            # Inference may use fused kernels that read parameters without calling their modules.
            self.updater.wait_updated(self._order.everything(module))

    def _note_synchroniser(self, module: nn.Module) -> None:
        """Note whether ``module``, called for the first time, is another synchroniser.

        The script may have wrapped it after this optimizer was made.
        """
        if other_synchronisers.is_synchroniser(module):
            self._others.add(module)

    def _parameters_by_name(self) -> dict[str, Tensor]:
        return {slot.name: slot.parameter for slot in self.gradients.slots.values()}

    def _may_overlap(self, optimizer: Optimizer, slots: Sequence[Slot]) -> bool:
        separable = self._separable
        if separable is None:
            separable = is_separable(optimizer, self._base)
        return (
            self._settings.overlap
            and not self._interruptions.are_usual
            and separable
            and self._agreement.reached
            and self._order.order is not None
            and not any(slot.averaged for slot in slots)
        )

    def _groups(self, optimizer: Optimizer) -> dict[Slot, int]:
        """The index of the parameter group to which each slot belongs now."""
        groups = {}
        for number, group in enumerate(optimizer.param_groups):
            for parameter in group["params"]:
                slot = self.gradients.slots.get(id(parameter))
                if slot is not None:
                    groups[slot] = number
                elif self.sends_missing:
                    other_synchronisers.refuse_parameter("a parameter put in later", parameter)
                    raise RuntimeError(
                        "byteprophet: a parameter was added to a group without add_param_group(), "
                        "or now belongs to another DistributedOptimizer"
                    )
        return groups

    def _hand_over(
        self,
        optimizer: Optimizer,
        slots: Sequence[Slot],
        groups: Mapping[Slot, int],
        send: bool,
    ) -> None:
        self.gradients.respect_replaced(slots, send)
        if send:
            self.gradients.submit_missing(slots)
        transfers = []
        for slot in slots:
            transfer = slot.transfer
            if transfer is not None:
                if transfer.shard is not None:
                    self.gradients.unsharding.keep(transfer)
            elif slot.parameter.grad is not None:
                transfer = self.gradients.at_hand(slot)
            else:
                continue
            transfers.append(transfer)
        slots = [transfer.slot for transfer in transfers]
        self.synchroniser.flush([slot.name for slot in slots])
        step = FrozenStep.of(optimizer, self._base)
        if not self.sends_missing:  # else ``_groups`` has found that there are no others
            self._update_others(optimizer, step)
        self._update(transfers, step, groups)

    def _update_others(self, optimizer: Optimizer, step: FrozenStep) -> None:
        """Update the parameters that this front does not manage by their gradients as they are."""
        for number, group in enumerate(optimizer.param_groups):
            others = [p for p in group["params"] if id(p) not in self.gradients.slots]
            updates = [(p, p.grad, None) for p in others if p.grad is not None]
            for parameter, gradient, _ in updates:
                pending.wait_for(parameter)  # the script may have taken it from another optimizer
                pending.wait_for(gradient)
            if updates:
                step.apply(number, updates)

    def _update(
        self, transfers: Sequence[Transfer], step: FrozenStep, groups: Mapping[Slot, int]
    ) -> None:
        if self._cores.are_scarce(threading.get_native_id()):
            wanted = [groups[transfer.slot] for transfer in transfers]
            used = self.updater.apply_arrived(transfers, step, wanted)
            transfers = [transfer for transfer in transfers if transfer not in used]
        slots = [transfer.slot for transfer in transfers]
        self.updater.hand_over(transfers, step, [groups[slot] for slot in slots], keep=self)
        self.updater.wait_updated(self._order.orphans)
        self.updater.wait_updated(slot for slot in slots if not pending.can_mark(slot.parameter))

    def _step_locally(self, optimizer: Optimizer, arguments: StepArguments, barrier: bool) -> Any:
        """Update by this rank's gradients, and average parameters if it is time for that."""
        self.settle_state(optimizer)
        self._steps += 1
        self._order.settle()
        groups = self._groups(optimizer)
        with process_spans.span(Kind.UPDATE, "optimizer"):
            result = arguments.run(self._base, optimizer)
        # One that was frozen since the last average differs between ranks until it is averaged.
        self._trained.update(slot for slot in groups if slot.parameter.requires_grad)
        if not self._local.count():
            return result
        slots = [slot for slot in groups if slot in self._trained]
        self._trained.clear()
        slots.sort(key=lambda slot: slot.index)
        transfers = [self.gradients.submit_parameter(slot) for slot in slots]
        self.synchroniser.flush(())
        step = only_averaged(FrozenStep.of(optimizer, self._base))
        self._update(transfers, step, groups)
        if barrier or not self._may_overlap(optimizer, slots):
            self.finish()
        self._end_step(slots)
        return result

    def settle_state(self, optimizer: Optimizer) -> None:
        """Finish all updates, then reduce the optimizer state to this rank's current shards."""
        self.finish()
        if not self.synchroniser.shards:
            return
        sharded_state.refuse_rearranged(optimizer, self.gradients)
        narrowed = self.synchroniser.layout_version, len(self.gradients.slots)
        if narrowed != self._narrowed:
            sharded_state.narrow(optimizer, self.gradients)
        self._narrowed = narrowed


def _refuse_removed(slots: Iterable[Slot]) -> None:
    """Raise ``RuntimeError`` if gradients of ``slots``, which are in no group, are exchanged."""
    for slot in slots:
        if slot.parameter.requires_grad and slot.is_sent:
            raise RuntimeError(
                f"byteprophet: parameter '{slot.name}' was removed from the optimizer's groups, "
                "and its gradients are still averaged: keep its group and freeze it by "
                "requires_grad_(False), or make a new optimizer of the groups that stay"
            )
