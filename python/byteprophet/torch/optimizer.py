"""``DistributedOptimizer``: gives any optimizer averaged gradients and per-layer waits.

The optimizer passed in stays the same object: its class is replaced by a subclass of itself, so
learning-rate schedulers made before, its state and its hooks go on working, and nothing can reach
the optimizer past the front.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer

from byteprophet.runtime_settings import RuntimeSettings
from byteprophet.torch import flush_points, reads, sharded_state
from byteprophet.torch.between_steps import BetweenSteps, between_steps
from byteprophet.torch.front import Front
from byteprophet.torch.naming import name_parameters, optimizer_parameters
from byteprophet.torch.synchroniser import Synchroniser, make_synchroniser
from byteprophet.torch.view_step import is_elementwise, needs_closure


class Uncompressed:
    """The default compression: none. Interface as ``byteps.torch.Compression``'s members."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, None]:
        """``tensor`` itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Tensor, _context: None) -> Tensor:
        """``tensor`` itself."""
        return tensor


class _Distributed:
    """What the subclass adds. ``self`` also is an ``Optimizer``; ``_front`` holds the front."""

    _front: Front
    _named: Callable[[Iterable[Tensor]], list[tuple[str, Tensor]]]
    _synchronize_at_step: bool

    def synchronize(self) -> None:
        """Wait until every parameter's ``grad`` is the average over all ranks.

        The next ``step()`` uses the gradients as they are then; it sends nothing again.
        """
        self._front.synchronize()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it, ``step()`` sends no gradients and uses them as they are.

        Where ranks update shares, each uses its share, and new parameters are sent.
        """
        before, self._synchronize_at_step = self._synchronize_at_step, False
        try:
            yield
        finally:
            self._synchronize_at_step = before

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within it, backward passes add to gradients, and none is sent."""
        gradients = self._front.gradients
        before, gradients.held = gradients.held, True
        try:
            yield
        finally:
            gradients.held = before

    @property
    def state(self) -> Any:
        """Every parameter's state, after all updates."""
        if "_front" in vars(self):  # not in a copy
            self._front.finish()
        return vars(self)["state"]

    @state.setter
    def state(self, state: Any) -> None:
        vars(self)["state"] = state

    def finish(self) -> None:
        """Wait until no update is outstanding: parameters and state may be read."""
        self._front.finish()

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Accumulate gradients over ``passes`` backward passes before they are sent."""
        self._front.gradients.set_passes(passes)


def _make_step(base: type[Optimizer]) -> Callable[..., Any]:
    def update(self: Any, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        has_post_hooks = (
            self._optimizer_step_post_hooks or torch_optimizer._global_optimizer_post_hooks
        )
        self._front.step(self, send=self._synchronize_at_step, barrier=bool(has_post_hooks))
        return loss

    hooked = Optimizer.profile_hook_step(update)

    def step(self: Any, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters, as soon as each one's averaged gradient is there.

        Uses the hyperparameters as they are now. Returns the closure's loss, if there is one.
        """
        self._opt_called = True
        has_pre_hooks = (
            self._optimizer_step_pre_hooks or torch_optimizer._global_optimizer_pre_hooks
        )
        if has_pre_hooks and closure is None and self._synchronize_at_step:
            self._front.synchronize()
        return hooked(self, closure)

    # Marks that torch's wrappers leave: hooks are run, and schedulers are told of each step.
    step.hooked = True  # type: ignore[attr-defined]
    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    return step


def _subclass(base: type[Optimizer]) -> type[Optimizer]:
    def zero_grad(self: Any, set_to_none: bool = True) -> None:
        """Clear gradients; those in flight are left to their transfer."""
        self._front.gradients.zero(
            optimizer_parameters(self), lambda: base.zero_grad(self, set_to_none), set_to_none
        )

    def state_dict(self: Any) -> dict[str, Any]:
        """The state after all updates; where ranks keep shares of it, all must call this."""
        self._front.settle_state(self)
        with sharded_state.whole(self, self._front.gradients):
            return base.state_dict(self)

    def load_state_dict(self: Any, state_dict: dict[str, Any]) -> None:
        """Replace the state, after all updates, by what ``state_dict`` gave."""
        self._front.settle_state(self)
        base.load_state_dict(self, state_dict)
        sharded_state.narrow(self, self._front.gradients)

    def sharded_state_dict(self: Any) -> dict[str, Any]:
        """Give this rank's shares of the state, after all updates; nobody else is asked."""
        self._front.settle_state(self)
        return base.state_dict(self)

    def load_sharded_state_dict(self: Any, state_dict: dict[str, Any]) -> None:
        """Replace the state by what the same rank of as many ranks saved; all ranks call it."""
        self._front.settle_state(self)
        before = self.state, self.param_groups
        base.load_state_dict(self, state_dict)
        try:
            sharded_state.adopt_saved(self, self._front.gradients)
        except ValueError:
            self.state, self.param_groups = before
            raise

    def add_param_group(self: Any, param_group: dict[str, Any]) -> None:
        """Add parameters, the same ones on every rank."""
        self._front.widen_state(self)
        known = {id(p) for p in optimizer_parameters(self)}
        base.add_param_group(self, param_group)
        self._front.manage(
            self._named([p for p in optimizer_parameters(self) if id(p) not in known])
        )

    methods = {
        "__doc__": base.__doc__,
        "__module__": __name__,
        "step": _make_step(base),
        "zero_grad": zero_grad,
        "state_dict": state_dict,
        "load_state_dict": load_state_dict,
        "sharded_state_dict": sharded_state_dict,
        "load_sharded_state_dict": load_sharded_state_dict,
        "add_param_group": add_param_group,
    }
    # The base first: then objects of both classes have one layout and may change between them.
    return type(base.__name__, (base, _Distributed), methods)


def is_settled(optimizer: Any) -> bool:
    """Whether a distributed ``optimizer`` stays as it is: nothing is planned or tuned any more."""
    front: Front = optimizer._front
    return front.settled


def distribute(
    optimizer: Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None,
    compression: Any,
    backward_passes_per_step: int,
    *,
    model: nn.Module | None,
    separable: bool | None,
    synchroniser: Synchroniser,
    settings: RuntimeSettings,
    between: BetweenSteps | None = None,
) -> Optimizer:
    """Put a front with ``synchroniser`` behind ``optimizer``; see ``DistributedOptimizer``."""
    base = type(optimizer)
    if issubclass(base, _Distributed):
        raise ValueError("this optimizer is distributed already")
    if needs_closure(base):
        raise ValueError(
            f"{base.__name__} evaluates its closure several times per step, which cannot be "
            "distributed; use another optimizer"
        )
    if backward_passes_per_step < 1:
        raise ValueError(f"backward_passes_per_step={backward_passes_per_step}: must be at least 1")
    parameters = optimizer_parameters(optimizer)
    flush_points.let_go_all()
    named = name_parameters(parameters, named_parameters, model, synchroniser.names)
    for other in flush_points.live_fronts():
        other.release(parameters)
    front = Front(
        base, compression, backward_passes_per_step, synchroniser, settings, separable, between
    )
    front.manage(named)
    flush_points.register(front)
    if settings.debug:
        reads.watch()
    if hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        del optimizer.step  # a scheduler's wrapper of the old method
    distributed: Any = optimizer
    distributed._front = front
    distributed._synchronize_at_step = True
    distributed._named = lambda new: name_parameters(
        new, None, model, synchroniser.names, len(parameters)
    )
    optimizer.__class__ = _subclass(base)
    return optimizer


def DistributedOptimizer(  # noqa: N802 (BytePS' name for it)
    optimizer: Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: Any = Uncompressed,
    backward_passes_per_step: int = 1,
    *,
    model: nn.Module | None = None,
    sync: str = "byteps",
    separable: bool | None = None,
    fusion: int | str = "planned",
) -> Optimizer:
    """Let ``optimizer`` average gradients over all ranks, during backward and the next forward.

    Returns ``optimizer`` itself, now also with ``synchronize()``, ``skip_synchronize()``,
    ``no_sync()``, ``finish()`` and ``set_backward_passes_per_step()``.

    ``named_parameters``: as ``model.named_parameters()`` gives them, the same names on every rank.
    Default: those of ``model`` if that is given, else numbers.
    ``compression``: a member of ``Compression``.
    ``backward_passes_per_step``: gradients are accumulated over so many backward passes.
    ``sync``: how gradients become the same on all ranks: ``"byteps"``; or, between the ranks of
    torch.distributed's default group and without servers, ``"allreduce"``, ``"dear"`` or
    ``"dear-planned"`` (docs/allreduce.md). Then all ranks begin with rank 0's parameters.
    ``fusion``: without servers, which gradients travel together: ``"planned"`` from what the first
    iterations show; neighbours of up to so many bytes; of a size that is searched (``"tuned"``); or
    four layers each (``"near-layer"``).
    ``separable``: whether the optimizer updates every parameter on its own. Default: true for the
    classes in ``torch.optim``; false for others, whose ``step()`` then waits for all gradients.

    A parameter without gradient takes part with zeros. Raises ``ValueError`` for an optimizer that
    needs a closure, for bad names and for an unknown ``sync``.
    """
    if fusion == "near-layer" and named_parameters is None and model is None:
        raise ValueError(
            "fusion='near-layer': layers are known by their parameters' names: give model= or "
            "named_parameters="
        )
    base = type(optimizer)
    elementwise = separable is not False and is_elementwise(optimizer, base)
    settings = RuntimeSettings.from_environment()
    options = {
        "compression": getattr(compression, "__name__", type(compression).__name__),
        "backward_passes_per_step": backward_passes_per_step,
    }
    synchroniser = make_synchroniser(sync, elementwise, fusion, settings.timeout_s, options)
    if synchroniser.size == 1:
        settings = replace(settings, overlap=False)  # nothing travels
    return distribute(
        optimizer,
        named_parameters,
        compression,
        backward_passes_per_step,
        model=model,
        separable=separable,
        synchroniser=synchroniser,
        settings=settings,
        between=between_steps(sync, synchroniser, settings, fusion),
    )


def flush(optimizer: Optimizer) -> None:
    """Wait until no update of ``optimizer`` is outstanding; any other optimizer is left alone."""
    if isinstance(optimizer, _Distributed):
        optimizer.finish()
