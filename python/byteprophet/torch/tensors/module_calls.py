"""Reports calls of modules, by one pair of global module hooks per process that never changes.

``torch.compile`` guards on the global module hooks. If we added and removed hooks, everything would
be compiled again each time. So the pair below is registered when this file is imported, and stays.
Code that needs to know of calls registers as a listener here instead.

Calls within compiled code are part of it: torch traces the hooks there, and they do nothing. The
hooks do run, and tell listeners, for modules that are called from eager code. This includes modules
called behind a graph break, and a module that was compiled in place (``module.compile()``): torch
runs its hooks before it enters the compiled forward.

Modules that run as one (``torch/regions``) are registered here, because only the call of the first
one shows when all of them run.

Threads: hooks run in the thread that calls the module. Listeners may be added and removed in any
thread, also by a finalizer that a garbage collection runs anywhere, so there is no lock: listeners
are in dictionaries, which single operations change, and calls go through copies.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch._dynamo import OptimizedModule
from torch._dynamo.decorators import skip_code  # type: ignore[attr-defined]
from torch.nn.modules import module as hooks

from byteprophet.torch.tensors.compiling import stays_eager

Before = Callable[[nn.Module, Any], None]
"""Receives the module and its positional arguments."""
After = Callable[[nn.Module, Any, Any], None]
"""Receives the module, its positional arguments and its output."""

_first: dict[object, Before] = {}
_last: dict[object, Before] = {}
_after: dict[object, After] = {}
_others: weakref.WeakKeyDictionary[nn.Module, list[weakref.ref[nn.Module]]] = (
    weakref.WeakKeyDictionary()
)
_compiled_regions: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def listen(before: Before, after: After | None = None, *, last: bool = False) -> Callable[[], None]:
    """Call ``before`` before every call of a module, and ``after`` after it.

    With ``last``, ``before`` is called after the ``before`` of listeners without ``last``. Returns
    a function that removes the listener.
    """
    key = object()
    (_last if last else _first)[key] = before
    if after is not None:
        _after[key] = after

    def end() -> None:
        _first.pop(key, None)
        _last.pop(key, None)
        _after.pop(key, None)

    return end


def run_together(modules: Sequence[nn.Module], *, compiled: bool) -> None:
    """Note that the first of ``modules`` runs all of them, and whether as compiled code."""
    first, *others = modules
    _others[first] = [weakref.ref(module) for module in others]
    if compiled:
        _compiled_regions.add(first)


def run_with(module: nn.Module) -> list[nn.Module]:
    """The modules that ``module`` runs besides its own, if it is the first of a region."""
    return [other for ref in _others.get(module, ()) if (other := ref()) is not None]


def is_compiled(module: nn.Module) -> bool:
    """Whether ``module`` was made by ``torch.compile``, compiled in place, or in a region."""
    return (
        module._compiled_call_impl is not None
        or isinstance(module, OptimizedModule)
        or module in _compiled_regions
    )


def has_hooks(module: nn.Module) -> bool:
    """Whether ``module`` has hooks of its own for calls or for backward passes."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def hooked_part(module: nn.Module) -> str:
    """The path within ``module`` of its first part that has hooks; empty if none has."""
    return next((path for path, part in module.named_modules() if path and has_hooks(part)), "")


def _before_call(module: nn.Module, inputs: Any) -> None:
    # torch traces this code, so it must stay this simple.
    if not torch.compiler.is_dynamo_compiling() and (_first or _last):
        _tell_before(module, inputs)


def _after_call(module: nn.Module, inputs: Any, output: Any) -> None:
    if not torch.compiler.is_dynamo_compiling() and _after:
        _tell_after(module, inputs, output)


# torch compiles functions that eager code calls behind a graph break, but must not compile these.
@stays_eager
def _tell_before(module: nn.Module, inputs: Any) -> None:
    for before in (*_first.copy().values(), *_last.copy().values()):
        before(module, inputs)


@stays_eager
def _tell_after(module: nn.Module, inputs: Any, output: Any) -> None:
    for after in _after.copy().values():
        after(module, inputs, output)


for _hook in (_before_call, _after_call):
    # torch must not compile a hook called from eager code, because it would then do nothing.
    skip_code(_hook.__code__)
# The warning says that hooks also run for the module that torch.compile makes. We need that.
warnings.filterwarnings("ignore", r"Using `torch.compile\(module\)` when there are global hooks")
hooks.register_module_forward_pre_hook(_before_call)
hooks.register_module_forward_hook(_after_call)
