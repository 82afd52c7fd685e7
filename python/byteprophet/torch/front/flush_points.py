"""Flush points: torch functions that read through aliases first wait for outstanding updates.

Any access to a parameter or gradient in flight waits (``tensors/pending.py``). That is not enough
in two cases. First, a script may read an alias that it made earlier, such as a ``state_dict`` that
it took at the start and saves now. Second, some functions need all gradients at once: clipping must
include the average even on a rank that has no gradient of its own (``clipping.py`` clips shards).
If the next step keeps gradients, nothing is clipped: their mean is, in the step that exchanges it.
Under local SGD, functions that save a model warn if it is this rank's own.

While one of our optimizers is alive, the functions in the tables below first complete its updates
and then run as usual. They are wrapped in torch itself, and in every module that has imported them
by name. This happens once per process, when the first such optimizer is made. So training scripts
need no changes, nothing is attached to the model, and copying and saving it works as before.
Recorders of jobs without such an optimizer wrap them, too, as they record what needs all averages.

Threads: the functions run in the thread in which the script calls them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch._dynamo.callback import on_compile_start
from torch.amp import GradScaler
from torch.optim import Optimizer

from byteprophet.torch.front import clipping, other_synchronisers
from byteprophet.torch.live_fronts import finish_all, live_fronts
from byteprophet.torch.recording import all_averages
from byteprophet.torch.sync.completion import called
from byteprophet.torch.tensors.naming import optimizer_parameters

# These read or replace parameters. All updates are finished first.
_READ_PARAMETERS: tuple[tuple[Any, str], ...] = (
    (nn.Module, "load_state_dict"),
    (nn.Module, "train"),
)
# ``Module.state_dict``, ``torch.save`` and ``destroy_process_group`` also finish all updates first
# (see ``install``).
# These change the gradients of the parameters in their first argument. They wait for the averages,
# or, if gradients are sharded, change only this rank's shards.
_CHANGE_GRADIENTS: dict[str, Callable[..., Any]] = {
    "clip_grad_norm_": clipping.by_norm,
    "clip_grad_value_": clipping.by_value,
}
# What they return of gradients that are not to be clipped.
_UNCLIPPED: dict[str, Callable[..., Any]] = {
    "clip_grad_norm_": clipping.norm_of,
    "clip_grad_value_": clipping.nothing_of,
}
# These read the gradients of the optimizer in their first argument.
_READ_GRADIENTS_OF_OPTIMIZER = ("unscale_", "step")


def average_gradients(parameters: Iterable[Tensor], function: Callable[..., Any]) -> None:
    """Wait for the averages of gradients of ``parameters``, if any are due.

    ``function`` is the torch function that was called with ``parameters``, for error messages.
    """
    parameters = list(parameters)
    with all_averages.needed():
        for front in live_fronts():
            if front.manages(parameters) and front.expected:
                front.synchronize(called(function))


def refuse_strangers(parameters: Sequence[Tensor], function: Callable[..., Any]) -> None:
    """Raise ``RuntimeError`` if averages and gradients that nobody averages are clipped together.

    Ranks would clip by different norms, so their parameters would differ from then on.
    """
    fronts = live_fronts()
    if not any(
        front.sends_missing and front.synchroniser.size > 1 and front.expected
        for front in fronts
        if front.manages(parameters)
    ):
        return
    for parameter in parameters:
        if (
            parameter.grad is not None
            and not any(front.manages([parameter]) for front in fronts)
            and not other_synchronisers.owner_of(parameter)
        ):
            raise RuntimeError(
                f"byteprophet: {function.__name__}() got a gradient of shape "
                f"{[*parameter.shape]} that no DistributedOptimizer averages, beside others that "
                "one does: freeze its parameter, give it to the optimizer, or clip only the "
                "optimizer's parameters"
            )


def _before_compiling(_what: Any) -> None:
    for front in live_fronts():
        front.before_compiling()


@functools.cache
def install() -> None:
    """Wrap the functions. This takes effect once per process."""
    on_compile_start(_before_compiling)
    for owner, name in _READ_PARAMETERS:
        setattr(owner, name, _after(finish_all, getattr(owner, name)))
    nn.Module.state_dict = _saving(nn.Module.state_dict)  # type: ignore[method-assign]
    wrapped: dict[Callable[..., Any], Callable[..., Any]] = {torch.save: _saving(torch.save)}
    destroy = distributed.destroy_process_group
    wrapped[destroy] = _finally_after(finish_all, destroy)
    for name, of_shards in _CHANGE_GRADIENTS.items():
        function = getattr(nn.utils, name)
        wrapped[function] = _clipping(function, of_shards, _UNCLIPPED[name])
    _replace(wrapped)
    for name in _READ_GRADIENTS_OF_OPTIMIZER:
        setattr(GradScaler, name, _scaling(getattr(GradScaler, name)))
    nn.Module.zero_grad = _zeroing(nn.Module.zero_grad)  # type: ignore[method-assign]


def _replace(wrapped: Mapping[Callable[..., Any], Callable[..., Any]]) -> None:
    """Replace each key by its value in every loaded module that has the key under its own name."""
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType):
            known = vars(module)
            for old, new in wrapped.items():
                if known.get(old.__name__) is old:
                    setattr(module, old.__name__, new)


def _after(before: Callable[[], None], function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def flushed(*args: Any, **kwargs: Any) -> Any:
        before()
        return function(*args, **kwargs)

    return flushed


def _saving(function: Callable[..., Any]) -> Callable[..., Any]:
    """Like ``_after(finish_all, function)``, but warns if a saved model is this rank's own."""

    @functools.wraps(function)
    def flushed(*args: Any, **kwargs: Any) -> Any:
        finish_all()
        saved = args[0] if args else kwargs.get("obj")  # torch.save has this keyword
        if isinstance(saved, nn.Module):
            for front in live_fronts():
                front.warn_saved(saved.parameters())
        return function(*args, **kwargs)

    return flushed


def _finally_after(before: Callable[[], None], function: Callable[..., Any]) -> Callable[..., Any]:
    """Like ``_after``, but calls ``function`` even if ``before`` fails.

    A script may be cleaning up because of that very failure.
    """

    @functools.wraps(function)
    def flushed(*args: Any, **kwargs: Any) -> Any:
        try:
            before()
        finally:
            function(*args, **kwargs)

    return flushed


def _clipping(
    function: Callable[..., Any], of_shards: Callable[..., Any], unclipped: Callable[..., Any]
) -> Callable[..., Any]:
    @functools.wraps(function)
    def flushed(parameters: Tensor | Iterable[Tensor], *args: Any, **kwargs: Any) -> Any:
        known = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        keeping = {front.keeps for front in live_fronts() if front.manages(known)}
        if len(keeping) > 1:
            raise RuntimeError(
                f"byteprophet: {function.__name__}() got gradients of several optimizers, of which "
                "only some exchange them in this step: call it for each optimizer"
            )
        if True in keeping:
            return unclipped(known, *args, **kwargs)
        refuse_strangers(known, function)
        for front in live_fronts():
            if front.shards_all(known):
                with all_averages.needed():
                    return of_shards(front, known, function, *args, **kwargs)
        average_gradients(known, function)
        if any(front.manages(known) for front in live_fronts()):
            known = clipping.by_rows(known)
        return function(known, *args, **kwargs)

    return flushed


def _scaling(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def flushed(scaler: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        if scaler.is_enabled():
            parameters = optimizer_parameters(optimizer)
            if any(front.accumulates and front.manages(parameters) for front in live_fronts()):
                raise RuntimeError(
                    "byteprophet: GradScaler cannot be used with a strategy that accumulates "
                    "gradients: kept gradients have the scales of their own steps"
                )
            if any(front.compresses and front.manages(parameters) for front in live_fronts()):
                raise RuntimeError(
                    "byteprophet: GradScaler cannot be used with a strategy that compresses "
                    "gradients: what was not sent of them has the scale of its own step, and "
                    "infinite values may be a part of it"
                )
            if any(front.delays and front.manages(parameters) for front in live_fronts()):
                raise RuntimeError(
                    "byteprophet: GradScaler cannot be used with a strategy that delays averages: "
                    "they have the scale, and may have the overflow, of an earlier iteration"
                )
            if any(
                front.averages_parameters and front.manages(parameters) for front in live_fronts()
            ):
                raise RuntimeError(
                    "byteprophet: GradScaler cannot be used with local SGD: a rank that skips a "
                    "step would average parameters at another one"
                )
            average_gradients(parameters, function)
        return function(scaler, optimizer, *args, **kwargs)

    return flushed


def _zeroing(function: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(function)
    def flushed(module: nn.Module, set_to_none: bool = True) -> None:
        zero: Callable[[], None] = functools.partial(function, module, set_to_none)
        for front in live_fronts():
            zero = functools.partial(front.zero, list(module.parameters()), zero, set_to_none)
        zero()

    return flushed
