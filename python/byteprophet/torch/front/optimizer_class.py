"""The class of a distributed optimizer: a subclass of its original class.

Its methods first complete the front's outstanding updates, then call the original class.
"""

from __future__ import annotations

import copyreg
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer

from byteprophet.torch.front import saved_compression, sharded_state
from byteprophet.torch.front.delays import DELAYED
from byteprophet.torch.front.front import Front
from byteprophet.torch.front.lossy_checkpoints import makes_state, refuse_lossy
from byteprophet.torch.front.step_arguments import StepArguments
from byteprophet.torch.front.view_step import is_of_torch
from byteprophet.torch.live_fronts import live_fronts
from byteprophet.torch.sync import saver
from byteprophet.torch.sync.completion import Call
from byteprophet.torch.tensors.compiling import stays_eager
from byteprophet.torch.tensors.naming import optimizer_parameters

_NOT_SAVED = "a state that is saved now is without them"
_NOT_COPIED = "a copy of the optimizer is without them"
_SAVED = Call("pickled or copied the optimizer", "state")
_HOOKED = Call("called step() with a hook before it")


class Distributed:
    """The methods that the subclass adds. ``self`` is also an ``Optimizer``."""

    _front: Front
    _named: Callable[[Iterable[Tensor]], list[tuple[str, Tensor]]]
    _synchronize_at_step: bool

    def synchronize(self) -> None:
        """Wait until every parameter's ``grad`` is the average over all ranks.

        The next ``step()`` sends nothing. It uses the gradients as the script leaves them.
        """
        self._front.synchronize()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within this context, ``step()`` sends no gradients and uses them as they are.

        If ranks update shards, each rank uses its shard of the gradients, and the updated
        parameters are all-gathered.
        """
        before, self._synchronize_at_step = self._synchronize_at_step, False
        try:
            yield
        finally:
            self._synchronize_at_step = before

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within this context, backward passes accumulate gradients and send none."""
        accumulation = self._front.gradients.accumulation
        before, accumulation.held = accumulation.held, True
        try:
            yield
        finally:
            accumulation.held = before

    @property
    def state(self) -> Any:
        """Every parameter's state. Reading it waits until no update is outstanding."""
        if "_front" in vars(self):  # not in a copy
            self._front.finish()
        return vars(self)["state"]

    @state.setter
    def state(self, state: Any) -> None:
        vars(self)["state"] = state

    def finish(self) -> None:
        """Wait until no update is outstanding, so that parameters and state may be read."""
        self._front.finish()

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Accumulate gradients over ``passes`` backward passes before they are sent."""
        self._front.gradients.accumulation.set_passes(passes)

    def sharded_state_dict(self: Any) -> dict[str, Any]:
        """The part of the state that this rank keeps, after all updates. Involves no other rank.

        It is the whole state if nothing is sharded. If there may be shards, it also says which rank
        saved it, and the owners' weights if these are unequal.
        """
        self._front.gradients.kept.warn_unused(_NOT_SAVED)
        self._front.settle_state(self)
        _refuse_unused(self._front, "sharded_state_dict()")
        state: dict[str, Any] = _plain_class(self).state_dict(self)
        sharded_state.add_own(state, self._front.gradients)
        saved_compression.add_own(state, self._front)
        return {**_with_delayed(self._front, state), **self._front.local.saved()}

    def load_sharded_state_dict(self: Any, state_dict: dict[str, Any]) -> None:
        """Load a state that this rank saved in a job of the same size. All ranks must call this.

        The owners may have had other weights in that job. Raises ``ValueError`` if another rank
        saved it.
        """
        self._front.gradients.kept.refuse("load_sharded_state_dict() was called")
        self._front.settle_state(self)
        _refuse_unused(self._front, "load_sharded_state_dict()")
        sharded_state.refuse_other(state_dict, self._front.synchroniser)
        adopt = saved_compression.read_own(state_dict, self._front)
        weights = state_dict.get(sharded_state.OWNERS, ())
        delays = self._front.gradients.delays
        delayed = delays.checked(state_dict.get(DELAYED, {}), "load_sharded_state_dict()")
        since = self._front.local.checked(state_dict, "load_sharded_state_dict()")
        before = self.state, self.param_groups
        _plain_class(self).load_state_dict(self, state_dict)
        try:
            sharded_state.adopt_saved(self, self._front.gradients, weights)
        except ValueError:
            self.state, self.param_groups = before
            raise
        adopt()
        delays.load(delayed)
        self._front.load_local(since)


def _plain_class(distributed: Any) -> type[Optimizer]:
    plain: type[Optimizer] = type(distributed).__bases__[0]
    return plain


def _make_step(base: type[Optimizer]) -> Callable[..., Any]:
    evaluates_once = is_of_torch(base)  # LBFGS is refused

    def update(self: Any, *positional: Any, **named: Any) -> Any:
        arguments, loss = StepArguments(positional, named), None
        if evaluates_once and arguments.closure is not None:
            with torch.enable_grad():
                loss = arguments.closure()
            arguments = arguments.with_closure(None)
        has_post_hooks = (
            self._optimizer_step_post_hooks or torch_optimizer._global_optimizer_post_hooks
        )
        barrier = self._barrier_at_step or bool(has_post_hooks) or not arguments.says_nothing
        result = self._front.step(self, arguments, send=self._synchronize_at_step, barrier=barrier)
        return result if loss is None else loss

    hooked = Optimizer.profile_hook_step(update)

    @stays_eager
    def run(self: Any, in_compiled: bool, *positional: Any, **named: Any) -> Any:
        self._opt_called = True
        if makes_state():
            self._front.make_state(self)
            return None
        self._barrier_at_step = in_compiled
        has_pre_hooks = (
            self._optimizer_step_pre_hooks or torch_optimizer._global_optimizer_pre_hooks
        )
        synchronizes = has_pre_hooks and self._synchronize_at_step
        if synchronizes and StepArguments(positional, named).closure is None:
            self._front.synchronize(_HOOKED)
        return hooked(self, *positional, **named)

    def step(self: Any, *arguments: Any, **named: Any) -> Any:
        """Update each parameter as soon as its averaged gradient has arrived.

        The updates use the current hyperparameters. Returns the closure's loss, if there is one.
        Within a compiled function, this causes a graph break and waits for all updates.

        If the class is not one of ``torch.optim``, its own ``step`` evaluates the closure. Every
        evaluation ends when its gradients are averages, and all updates are made before this
        returns what the class returns. So they are with other arguments.
        """
        return run(self, torch.compiler.is_dynamo_compiling(), *arguments, **named)

    # torch's wrappers set these flags to show that hooks run and that schedulers see each step.
    step.hooked = True  # type: ignore[attr-defined]
    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    return step


def _with_delayed(front: Front, state: dict[str, Any]) -> dict[str, Any]:
    delayed = front.gradients.delays.saved()
    return {**state, DELAYED: delayed} if delayed else state


def _refuse_unused(front: Front, call: str) -> None:
    front.gradients.delays.refuse_unused(call)
    saved_compression.refuse_unused(front, call)


def make_distributed(
    optimizer: Optimizer,
    front: Front,
    named: Callable[[Iterable[Tensor]], list[tuple[str, Tensor]]],
) -> None:
    """Make ``optimizer`` a distributed one, of ``front``.

    ``named``: of parameters that are added later, those that ``front`` manages, with their names.
    """
    distributed: Any = optimizer
    distributed._front = front
    distributed._synchronize_at_step = True
    distributed._named = named
    own = vars(optimizer)
    if hasattr(own.get("step"), "_wrapped_by_lr_sched"):
        own["_scheduled_step"] = own.pop("step")  # a scheduler's wrapper of the old method
    optimizer.__class__ = distributed_class(type(optimizer))


def plain_again(optimizer: Optimizer) -> None:
    """Make a distributed optimizer one of its original class. Nothing of it may be outstanding."""
    optimizer.__class__ = _plain_class(optimizer)
    own = vars(optimizer)
    for name in ("_front", "_named", "_synchronize_at_step", "_barrier_at_step"):
        own.pop(name, None)
    if "_scheduled_step" in own:
        own["step"] = own.pop("_scheduled_step")


def front_of(optimizer: Any) -> Front:
    """The front of a distributed ``optimizer``."""
    front: Front = optimizer._front
    return front


def manage_more(optimizer: Any, parameters: Iterable[Tensor]) -> None:
    """Let the front of a distributed ``optimizer`` manage more of its parameters.

    Every rank must call this with the same ones, except for those that no rank exchanges.
    """
    named = optimizer._named(parameters)
    if not named:
        return
    front = front_of(optimizer)
    front.finish()
    for other in live_fronts():
        other.release([parameter for _, parameter in named])
    front.manage(named)


def distributed_class(base: type[Optimizer]) -> type[Optimizer]:
    """Make a subclass of ``base`` whose instances hold their front in ``_front``."""
    zeroing = inspect.signature(base.zero_grad)

    def zero_grad(self: Any, *arguments: Any, **named: Any) -> None:
        """Clear the gradients. Those that outstanding updates need are detached instead.

        If the class does not say what ``set_to_none`` is, this waits for the updates first.
        """
        bound = zeroing.bind(self, *arguments, **named)
        bound.apply_defaults()
        set_to_none = bound.arguments.get("set_to_none")
        if set_to_none is None:
            self._front.finish()
        self._front.gradients.zero(
            optimizer_parameters(self),
            lambda: base.zero_grad(self, *arguments, **named),
            bool(set_to_none),
        )

    def state_dict(self: Any, *arguments: Any, **named: Any) -> dict[str, Any]:
        """The whole state after all updates.

        All ranks must call this if it is sharded, or if gradients are compressed. It has no
        gradients of accumulated steps that have updated nothing. If averages are delayed, it has
        those that no step has used (``delays.DELAYED``).
        """
        refuse_lossy(self._front)
        self._front.gradients.kept.warn_unused(_NOT_SAVED)
        self._front.settle_state(self)
        _refuse_unused(self._front, "state_dict()")
        with sharded_state.whole(self, self._front.gradients):
            state: dict[str, Any] = base.state_dict(self, *arguments, **named)
        state = _with_delayed(self._front, state)
        saved_compression.add_whole(state, self._front)
        return {**state, **self._front.local.saved()}

    def load_state_dict(
        self: Any, state_dict: dict[str, Any], *arguments: Any, **named: Any
    ) -> None:
        """Load a state that ``state_dict()`` returned, after all updates are finished.

        Raises ``ValueError`` if ``sharded_state_dict()`` returned it, and it may have shards.
        """
        saver.refuse_shards(state_dict)
        self._front.gradients.kept.refuse("load_state_dict() was called")
        self._front.settle_state(self)
        _refuse_unused(self._front, "load_state_dict()")
        adopt = saved_compression.read_whole(state_dict, self._front)
        delays = self._front.gradients.delays
        delayed = delays.checked(state_dict.get(DELAYED, {}), "load_state_dict()")
        since = self._front.local.checked(state_dict, "load_state_dict()")
        base.load_state_dict(self, state_dict, *arguments, **named)
        sharded_state.narrow(self, self._front.gradients)
        delays.load(delayed)
        self._front.load_local(since)
        adopt()

    def add_param_group(self: Any, param_group: dict[str, Any]) -> None:
        """Add a parameter group. Every rank must add the same parameters."""
        self._front.widen_state(self)
        known = {id(p) for p in optimizer_parameters(self)}
        base.add_param_group(self, param_group)
        manage_more(self, [p for p in optimizer_parameters(self) if id(p) not in known])

    def reduce(self: Any, _protocol: Any) -> tuple[Any, ...]:
        """Pickle or copy the optimizer as an object of its original class, after all updates.

        If the state is sharded, all ranks must call this.
        """
        self._front.gradients.kept.warn_unused(_NOT_SAVED)
        self._front.gradients.delays.warn_unused(_NOT_COPIED)
        self._front.settle_state(self)
        with sharded_state.whole(self, self._front.gradients, _SAVED):
            # This is the constructor of protocol 1. Newer protocols require the object's own class.
            make: Any = copyreg._reconstructor  # type: ignore[attr-defined]
            return make, (base, object, None), base.__getstate__(self)

    methods = (
        zero_grad,
        state_dict,
        load_state_dict,
        Distributed.sharded_state_dict,
        Distributed.load_sharded_state_dict,
        add_param_group,
    )
    step = _make_step(base)
    own: tuple[Any, ...] = (step, zero_grad, state_dict, load_state_dict)
    for method in own:
        # Callers may look for arguments, as torch's GradScaler does.
        method.__signature__ = inspect.signature(getattr(base, method.__name__))
    members = {
        "__doc__": base.__doc__,
        "__module__": __name__,
        "__reduce_ex__": reduce,
        "step": step,
    }
    # Within a compiled function these methods cause graph breaks, like those of torch's optimizers.
    members |= {method.__name__: stays_eager(method) for method in methods}
    # The base comes first, so that objects of both classes have the same layout and an object may
    # change from one class to the other.
    return type(base.__name__, (base, Distributed), members)
