"""Takes over the exchange of gradients from ``DistributedDataParallel``, and gives it back.

A model is taken over in its first forward pass that computes gradients, because its optimizers
exist by then as a rule. Each optimizer of its parameters gets a front. The model keeps it until
another optimizer takes over these parameters, because the script may drop the optimizer before. An
optimizer of our own that never steps holds the parameters that no other one holds. The model's
reducer stays as it is. It does nothing as long as nobody tells it to expect a backward pass.

A model that is unfit, and all that share an optimizer with it, keep their own exchange. Later, all
models do, if the script asks for what only a reducer can do. That moves no state between ranks,
because no bucket is sharded: every rank has all averages. But all ranks must do it at the same
point. What DistributedDataParallel itself asks of all ranks, such as ``join()``, is taken for
granted. Of all else, such as a hook of one parameter, ranks tell each other (``meeting.py``).

The models of a trial (``trial.py``) are taken over some iterations later, and given back if ours
are not faster. Another model may be between its forward and its backward pass then (a GAN's
generator, at a forward pass of the discriminator). The exchange that is chosen then handles that
outstanding backward pass; the other one ignores it.

Threads: the training thread calls everything, except that ``_submit`` runs in autograd's.
"""

from __future__ import annotations

import gc
import os
import sys
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, distributed
from torch.optim import Optimizer

from byteprophet.errors import warn
from byteprophet.runtime_settings import SYNC, RuntimeSettings
from byteprophet.torch.ddp import fitness, models
from byteprophet.torch.ddp.backward import ModelRules
from byteprophet.torch.ddp.meeting import meet
from byteprophet.torch.ddp.models import Model, State
from byteprophet.torch.ddp.optimizers import additions, optimizers_of, watch_additions
from byteprophet.torch.ddp.rules import Rules
from byteprophet.torch.ddp.trial import Trial
from byteprophet.torch.front.front import Front
from byteprophet.torch.front.optimizer_class import front_of, manage_more, plain_again
from byteprophet.torch.tensors.dense import shares_memory
from byteprophet.torch.tensors.naming import optimizer_parameters


class _Unheld(Optimizer):
    """Holds the parameters that no optimizer of the script holds. Nobody calls its ``step``."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> Any:
        """Do nothing."""


_PATIENCE_S = 60.0  # until a model keeps its own exchange because a rank has not come
_rules = Rules()
_optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()  # those that have a front of ours
_seen = -1  # ``additions()`` at the last search
_store: Any = None  # of the process group at the last search
_is_told = False  # whose exchange it is
_meetings = 0  # how many there were; the same on all ranks


def before_forward(model: Model) -> None:
    """Take over what is new. Called before a forward pass of ``model`` that computes gradients."""
    _leave_to_others(model)
    if model.public.trial is not None and model.state is not State.PLAIN:
        _follow(model.public.trial, model)
    if model.times_own:
        return
    if model.state is State.OURS and (reason := fitness.why_hooked(model.parameters)):
        _give_back_together(model, reason)
    if model.state is State.NEW or (model.state is State.OURS and additions() != _seen):
        _take_new()
    if model.backward is not None:
        model.backward.check_finished()
        for front in fronts():
            front.gradients.participants()  # hooks parameters that are no longer frozen


def _leave_to_others(model: Model) -> None:
    """Note that ``model`` exchanges its gradients itself if some ranks do not have it.

    This comes first, because all that follows may need a message of all ranks.
    """
    wrapped = model.of()
    if wrapped is not None and model.state is State.NEW:
        reason = fitness.why_group(wrapped)
        if reason:
            model.keeps_own_exchange(reason)


def _follow(trial: Trial, model: Model) -> None:
    """Count an iteration of ``model``, and change or choose the exchange when it is time."""
    wrapped = model.of()
    if trial.is_over:
        if not trial.is_ours:
            model.keeps_own_exchange(trial.outcome)
        return
    if wrapped is None or not wrapped.require_backward_grad_sync:
        return
    took_ns = trial.begin_iteration(model, model.backwards)
    if took_ns is None:
        return
    reason = _absence("the trial of both exchanges")
    tried = _sharers([each for each in models.all_in(State.OURS) if each.public.trial is trial])
    if reason:
        if model.state is State.NEW:
            model.keeps_own_exchange(reason)
        _give_back(tried, reason, begins=model)
        trial.give_up(reason)
        return
    if not trial.is_ours:
        trial.try_ours(took_ns)
        return
    device = next(iter(model.parameters.values())).device
    stays = float(any(_must_stay(each) for each in tried if each is not model))
    means = torch.tensor([*trial.times_ns(took_ns), stays], device=device)
    distributed.all_reduce(means)
    own_ns, ours_ns, stay = (means / distributed.get_world_size()).tolist()
    trial.decide(own_ns, ours_ns, must_stay=stay > 0)
    if not trial.is_ours:
        _give_back(tried, trial.outcome, begins=model)
    elif distributed.get_rank() == 0:
        print(f"byteprophet: dear-planned exchanges gradients: {trial.outcome}", file=sys.stderr)


def _must_stay(model: Model) -> bool:
    """Whether ``model`` awaits a backward pass of which its reducer had to see the forward pass."""
    wrapped, backward = model.of(), model.backward
    special = wrapped is not None and (wrapped.find_unused_parameters or wrapped.static_graph)
    return special and backward is not None and backward.expecting


def _absence(what: str) -> str:
    """Nothing if all ranks are at this point, else why they must stay as they are."""
    global _meetings
    _meetings += 1
    patience_s = min(_PATIENCE_S, RuntimeSettings.from_environment().timeout_s)
    return _meet(
        str(_meetings),
        f"{SYNC}={os.environ.get(SYNC, '')} and {what}",
        f"begun this forward pass within {patience_s:g} s ({SYNC} may have another value there, or "
        "none)",
        patience_s,
    )


def _meet(name: str, says: str, done: str, patience_s: float) -> str:
    return meet(
        distributed.distributed_c10d._get_default_store(),
        name,
        distributed.get_rank(),
        distributed.get_world_size(),
        says,
        done,
        patience_s,
    )


def _give_back_together(model: Model, reason: str) -> None:
    """``give_back``, for a ``reason`` that other ranks may not have.

    Raises ``RuntimeError`` if they have none: they wait for this rank's part of our exchange.
    """
    # Half as long as the others wait for gradients, so that this is the first error.
    patience_s = min(_PATIENCE_S, RuntimeSettings.from_environment().timeout_s / 2)
    done = f"found a reason like that within {patience_s:g} s"
    absence = _meet(f"{_meetings}.back", "", done, patience_s)
    if absence:
        raise RuntimeError(
            "byteprophet: DistributedDataParallel must exchange the gradients itself from here on, "
            f"because {reason}; but {absence}: do that on all ranks, or before the first forward "
            "pass"
        )
    give_back(model, reason)


def give_back(model: Model, reason: str) -> None:
    """Let ``model`` and, if ours exchange its gradients, all models exchange gradients themselves.

    All ranks must call this at the same point. Gradients that were sent become averages first, and
    all updates are finished.
    """
    if model.state is State.NEW:
        model.keeps_own_exchange(reason)
    if model.state is State.OURS:
        _give_back(models.all_in(State.OURS), reason)


def _sharers(some: Iterable[Model]) -> list[Model]:
    """``some`` models of ours, and those that share a front with them, maybe through others."""
    found = [*some]
    while True:
        theirs = {front for each in found for front in each.fronts}
        more = [each for each in models.all_in(State.OURS) if not theirs.isdisjoint(each.fronts)]
        if len(more) <= len(found):
            return found
        found = more


def _give_back(leaving: Sequence[Model], reason: str, begins: Model | None = None) -> None:
    """Let models of ours exchange gradients themselves; none that stays shares a front with them.

    ``begins``: the model whose forward pass begins now.
    """
    _release({front for each in leaving for front in each.fronts})
    for each in leaving:
        wrapped = each.of()
        if wrapped is not None:
            if _must_stay(each) and each is not begins:
                warn(
                    f"DistributedDataParallel of {type(wrapped.module).__name__}: if a backward "
                    "pass of its last forward pass follows, its gradients are not averaged"
                )
            _restart_reducer(wrapped, each.backward is not None and each.backward.expecting)
        each.keeps_own_exchange(reason)
    _follow_rules()


def _follow_rules() -> None:
    ours = models.all_in(State.OURS)
    _rules.follow(each.backward for each in ours if each.backward is not None)


def _restart_reducer(wrapped: Any, expecting: bool) -> None:
    """Let the reducer of a DistributedDataParallel begin again, ``expecting`` a backward pass.

    Its hooks have run while it expected nothing. That of a static graph has missed the first pass,
    in which it counts, so it is made anew, as when a DistributedDataParallel is copied.
    """
    if not wrapped.static_graph:
        wrapped.reducer._reset_state()
        if expecting and not wrapped.find_unused_parameters:
            wrapped.reducer.prepare_for_backward([])
        return
    wrapped.reducer._remove_autograd_hooks()
    parameters, sparse = wrapped._build_params_for_reducer()
    names = wrapped._build_debug_param_to_name_mapping(parameters)
    wrapped._ddp_init_helper(parameters, sparse, names, True)
    wrapped.static_graph = False
    wrapped._set_static_graph()


def fronts() -> list[Front]:
    """The fronts of all optimizers and models, the same order on all ranks."""
    found = [front_of(optimizer) for optimizer in _optimizers]
    found += (front for each in models.all_in(State.OURS) for front in each.fronts)
    return sorted({*found}, key=lambda front: front.serial)


def _take_new() -> None:
    global _seen
    watch_additions(_rules.exchanges)
    gc.collect()  # models and optimizers that only circles of references keep alive
    _leave_old_group()
    for each in models.all_in(State.NEW):
        _leave_to_others(each)
    new = [each for each in models.all_in(State.NEW) if not each.times_own]
    ours = models.all_in(State.OURS)
    reason = _absence(f"{len(new)} new model(s)") if new else ""
    if reason:
        for each in new:
            each.keeps_own_exchange(reason)
        new = []
    keys = [id(parameter) for each in (*ours, *new) for parameter in each.parameters.values()]
    found = optimizers_of(keys)
    optimizers = [each for each in found.own if not isinstance(each, _Unheld)]
    fresh = [each for each in optimizers if each not in _optimizers]
    reasons = _reasons([*ours, *new], optimizers, {*fresh, *found.wrappers})
    if new and not _agree(ours, new, reasons):
        reasons = dict.fromkeys([*ours, *new], "ranks differ in what they train")
    leaving = next((each for each in ours if each in reasons), None)
    if leaving is None:
        taken = [each for each in new if each not in reasons]
        _take(taken, optimizers)
        _tell_once(taken)
    elif new:
        give_back(leaving, reasons[leaving])  # and all others; the ranks have agreed
    else:
        _give_back_together(leaving, reasons[leaving])
    for each in new:  # only now, because one that is recorded must find the fronts of others
        if each in reasons:
            each.keeps_own_exchange(reasons[each])
    _seen = additions()


def _tell_once(taken: Sequence[Model]) -> None:
    """Rank 0 says, once, that ours exchanges gradients: nothing in the results shows it.

    After a trial, its outcome says so.
    """
    global _is_told
    untried = [each for each in taken if each.public.trial is None]
    if not _is_told and untried and distributed.get_rank() == 0:
        _is_told = True
        name = untried[0].public.sync
        text = f"byteprophet: {name} exchanges the gradients of DistributedDataParallel"
        print(text, file=sys.stderr, flush=True)


def _leave_old_group() -> None:
    """Forget fronts and models of a process group that the script has destroyed.

    The next one may have other ranks.
    """
    global _store
    store = distributed.distributed_c10d._get_default_store()
    if _store is not None and _store is not store:
        _release(fronts())
        models.forget_all_but(store)
    _store = store


def _release(leaving: Collection[Front]) -> None:
    """Take fronts away. Gradients become averages first, and all updates are finished."""
    for front in sorted(leaving, key=lambda front: front.serial):
        front.synchronize()
        front.release([slot.parameter for slot in front.gradients.slots.values()])
    for optimizer in [each for each in _optimizers if front_of(each) in leaving]:
        plain_again(optimizer)
        _optimizers.discard(optimizer)
    for each in models.all_in(State.OURS):
        each.fronts = [front for front in each.fronts if front not in leaving]


def _reasons(
    candidates: Sequence[Model], optimizers: Sequence[Optimizer], unchecked: Collection[Optimizer]
) -> dict[Model, str]:
    """Why models are unfit, or share an optimizer with one that is."""
    plain = models.all_in(State.PLAIN)
    reasons = dict.fromkeys(plain, "its optimizer has another model, which keeps its own exchange")
    owner = {id(parameter): each for each in plain for parameter in each.parameters.values()}
    for each in candidates:
        wrapped = each.of()
        if wrapped is not None and each.state is State.NEW:
            reason = fitness.why_model(wrapped, each.parameters)
            if any(id(parameter) in owner for parameter in each.parameters.values()):
                reason = "another DistributedDataParallel has the same parameters"
                reasons.update(
                    (owner[id(parameter)], reason)
                    for parameter in each.parameters.values()
                    if id(parameter) in owner
                )
            if reason:
                reasons[each] = reason
        owner.update((id(parameter), each) for parameter in each.parameters.values())
    held: set[int] = set()
    groups = []
    for optimizer in (*optimizers, *(each for each in unchecked if each not in optimizers)):
        keys = {id(parameter) for parameter in optimizer_parameters(optimizer)} & owner.keys()
        group = {owner[key] for key in keys}
        groups.append(group)
        reason = fitness.why_optimizer(optimizer) if optimizer in unchecked else ""
        if optimizer in optimizers:
            if not held.isdisjoint(keys):
                reason = "two optimizers hold the same parameter"
            held |= keys
        if reason:
            reasons.update((each, reason) for each in group)
    everything = [*plain, *candidates]
    for _ in everything:  # a reason may have to be passed on as often
        for group in groups:
            unfit = next((reasons[each] for each in everything if each in group & {*reasons}), "")
            if unfit:
                reasons.update((each, unfit) for each in group if each not in reasons)
    return reasons


def _agree(ours: Sequence[Model], new: Sequence[Model], reasons: Mapping[Model, str]) -> bool:
    """Whether all ranks find the same ``new`` models fit, and all ``ours`` fit, or some unfit.

    All ranks call this together. One rank may keep models of ours that others have deleted.
    """
    device = next(iter(new[0].parameters.values())).device
    stay = int(reasons.keys().isdisjoint(ours))
    fit = torch.tensor([stay, *(int(each not in reasons) for each in new)], device=device)
    distributed.all_reduce(fit)
    size = distributed.get_world_size()
    return all(count in (0, size) for count in fit.tolist())


def _take(new: Sequence[Model], optimizers: Sequence[Optimizer]) -> None:
    """Take over the models ``new``, and what the ``optimizers`` hold of any model that is ours."""
    for each in new:
        wrapped = each.of()
        assert wrapped is not None
        backward = each.public.rules_of(wrapped, each.parameters, _submit)
        models.take(each, backward)
        wrapped.reducer._reset_state()  # after forward passes in a trial, it would reduce, too
        if each.forget_reducer():
            backward.expect(())
    _follow_rules()
    ours = models.all_in(State.OURS)
    for optimizer in optimizers:
        keys = {id(parameter) for parameter in optimizer_parameters(optimizer)}
        holding = (each for each in ours if not keys.isdisjoint(map(id, each.parameters.values())))
        first = next(holding, None)
        if optimizer in _optimizers:
            known = front_of(optimizer).gradients.slots
            parameters = optimizer_parameters(optimizer)
            manage_more(optimizer, [each for each in parameters if id(each) not in known])
        elif first is not None:
            _distribute(first, optimizer)
    for each in ours:
        held = {key for front in fronts() for key in front.gradients.slots}
        left = [parameter for parameter in each.parameters.values() if id(parameter) not in held]
        if left:
            each.unheld.append(_Unheld(left))
            _distribute(each, each.unheld[-1])
    known_fronts = fronts()
    for each in ours:
        each.fronts = [front for front in known_fronts if front.manages(each.parameters.values())]


def _distribute(first: Model, optimizer: Optimizer) -> None:
    """Give ``optimizer``, which holds parameters of ``first`` and maybe of others, a front."""
    first.public.distribute(optimizer, _rules)
    _optimizers.add(optimizer)


def _submit(rules: ModelRules, missing: Iterable[Tensor]) -> None:
    """See ``Submit``."""
    for each in models.all_in(State.OURS):
        each.backwards += each.backward is rules
    for front in fronts():
        slots = front.gradients.slots
        for parameter in missing:
            slot = slots.get(id(parameter))
            if slot is not None:
                front.gradients.settle(slot)  # forward has not waited for what it has skipped
                front.gradients.submit(slot)
        if front.manages(rules.parameters.values()):
            front.synchroniser.flush(())
            sent = [slot.transfer.gradient for slot in slots.values() if slot.transfer is not None]
            if any(map(shares_memory, sent)):  # the script may read them by another tensor
                front.synchronize()
