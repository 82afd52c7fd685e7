"""Flush points: the places where what was read before is read anew, by other tensors' names.

Whoever touches a parameter or gradient under way waits (``pending.py``). That does not help where
aliases made earlier are read (a ``state_dict`` kept since the start and saved now), nor where all
gradients must be there at once: a rank without a gradient of its own learns the average, which
counts for clipping (of shares: ``clipping.py``). While an optimizer of ours lives, the functions in
the tables below first let it catch up, then do what they always did. They are wrapped in torch
itself, and wherever a module has imported them by name, once per process and only when the first
such optimizer is made: a training script calls them without knowing of us, and nothing is attached
to the model, so copying and saving it stays as it was.

A process forked from a rank is none: it has none of our threads, and waits for nothing.

Threads: called where the script calls them; the set of live optimizers changes in the main thread.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import weakref
from collections.abc import Callable, Iterable
from multiprocessing.util import Finalize
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from byteprophet import _leaving
from byteprophet.torch import clipping, pending

if TYPE_CHECKING:
    from byteprophet.torch.front import Front
    from byteprophet.torch.synchroniser import Synchroniser
    from byteprophet.torch.updates import Updater

_fronts: weakref.WeakSet[Front] = weakref.WeakSet()
_updaters: weakref.WeakSet[Updater] = weakref.WeakSet()  # alive as long as their threads are
_synchronisers: weakref.WeakSet[Synchroniser] = weakref.WeakSet()
_at_stop: list[Callable[[], None]] = []
_installed = False
_JOIN_S = 5.0
_BEFORE_CHILDREN = 100  # are ended and waited for, by multiprocessing at exit

# Read or replace parameters: all updates are finished first.
_READ_PARAMETERS: tuple[tuple[Any, str], ...] = (
    (nn.Module, "state_dict"),
    (nn.Module, "load_state_dict"),
    (nn.Module, "train"),
)
# ``torch.save`` and ``destroy_process_group`` do so, too.
# Change gradients of the parameters given first: averages are waited for, or, where each rank has
# its share of them, changed there.
_CHANGE_GRADIENTS: dict[str, Callable[..., Any]] = {
    "clip_grad_norm_": clipping.by_norm,
    "clip_grad_value_": clipping.by_value,
}
# Read gradients of the optimizer given first.
_READ_GRADIENTS_OF_OPTIMIZER = ("unscale_", "step")


def live_fronts() -> list[Front]:
    """The fronts of all optimizers alive, in the order of their making, the same on every rank."""
    return sorted(_fronts, key=lambda front: front.serial)


def register(front: Front) -> None:
    """Let the flush points know ``front``; the first one installs them."""
    global _installed
    _fronts.add(front)
    _updaters.add(front.updater)
    _synchronisers.add(front.synchroniser)
    if not _installed:
        _installed = True
        _install()


def finish_all() -> None:
    """Wait until no update is outstanding anywhere."""
    for front in live_fronts():
        front.finish()


def let_go_all() -> None:
    """Wait until no thread of ours holds a tensor of an update that is over.

    Then whether a tensor is gone depends on the script alone (``naming.py``).
    """
    for updater in list(_updaters):
        updater.let_go(_JOIN_S)
    for synchroniser in list(_synchronisers):
        synchroniser.let_go(_JOIN_S)


def stop_all() -> None:
    """Wait until nothing travels any more and let synchronisers release their threads."""
    for front in live_fronts():
        front.drain()
    for synchroniser in list(_synchronisers):
        synchroniser.close()
    while _at_stop:
        _at_stop.pop()()


def at_stop(leave: Callable[[], None]) -> None:
    """Call ``leave`` once, when synchronisers have been closed, also if none of them lives."""
    _at_stop.append(leave)


def average_gradients(parameters: Iterable[Tensor]) -> None:
    """Wait for averages where ``parameters`` have gradients on their way."""
    parameters = list(parameters)
    for front in live_fronts():
        if front.gradients.unclaimed and front.manages(parameters):
            front.synchronize()


def _install() -> None:
    for owner, name in _READ_PARAMETERS:
        setattr(owner, name, _after(finish_all, getattr(owner, name)))
    _replace(torch.save, _after(finish_all, torch.save))
    destroy = distributed.destroy_process_group
    _replace(destroy, _finally_after(finish_all, destroy))
    for name, of_shares in _CHANGE_GRADIENTS.items():
        function = getattr(nn.utils, name)
        _replace(function, _clipping(function, of_shares))
    for name in _READ_GRADIENTS_OF_OPTIMIZER:
        setattr(GradScaler, name, _scaling(getattr(GradScaler, name)))
    nn.Module.zero_grad = _zeroing(nn.Module.zero_grad)  # type: ignore[method-assign]
    # Multiprocessing's own processes end without what atexit has; whichever comes calls it once,
    # and in this process only.
    atexit.register(Finalize(None, _at_exit, exitpriority=_BEFORE_CHILDREN))
    os.register_at_fork(after_in_child=_in_forked_child)


def _replace(old: Callable[..., Any], new: Callable[..., Any]) -> None:
    """Put ``new`` in the place of ``old`` in every module that has it under its name."""
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType) and vars(module).get(old.__name__) is old:
            setattr(module, old.__name__, new)


def _after(before: Callable[[], None], function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def flushed(*args: Any, **kwargs: Any) -> Any:
        before()
        return function(*args, **kwargs)

    return flushed


def _finally_after(before: Callable[[], None], function: Callable[..., Any]) -> Callable[..., Any]:
    """Likewise, also when ``before`` fails: a script may tidy up because of that very failure."""

    @functools.wraps(function)
    def flushed(*args: Any, **kwargs: Any) -> Any:
        try:
            before()
        finally:
            function(*args, **kwargs)

    return flushed


def _clipping(function: Callable[..., Any], of_shares: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def flushed(parameters: Tensor | Iterable[Tensor], *args: Any, **kwargs: Any) -> Any:
        known = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        for front in live_fronts():
            if front.shares_all(known):
                return of_shares(front, known, function, *args, **kwargs)
        average_gradients(known)
        return function(known, *args, **kwargs)

    return flushed


def _scaling(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def flushed(scaler: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        if scaler.is_enabled():
            average_gradients(p for group in optimizer.param_groups for p in group["params"])
        return function(scaler, optimizer, *args, **kwargs)

    return flushed


def _zeroing(function: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(function)
    def flushed(module: nn.Module, set_to_none: bool = True) -> None:
        zero: Callable[[], None] = functools.partial(function, module, set_to_none)
        for front in live_fronts():
            zero = functools.partial(
                front.gradients.zero, list(module.parameters()), zero, set_to_none
            )
        zero()

    return flushed


def _in_forked_child() -> None:
    """Parameters whose updates were outstanding stay as they are here: maybe half updated."""
    for mark in list(pending.marks.values()):
        pending.unmark(mark.tensor)
    for updater in _updaters:
        updater.forget()
    _fronts.clear()
    _updaters.clear()
    _synchronisers.clear()
    _at_stop.clear()


def _at_exit() -> None:
    """Runs before BytePS' own exit handler, which was registered earlier (by ``init``).

    What other ranks still need of us is sent. After an uncaught exception nobody is waited for: the
    job has failed. Updater threads are ended in any case: Python kills what threads are left, which
    aborts the process if one is inside torch.
    """
    try:
        if not _leaving.has_failed():
            stop_all()
    except RuntimeError as error:
        print(error, file=sys.stderr)
    for updater in list(_updaters):
        updater.close()
    for updater in list(_updaters):
        updater.join(_JOIN_S)
