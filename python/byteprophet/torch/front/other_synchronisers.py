"""Refuses to share gradients with another synchroniser.

With two synchronisers, results are silently wrong, because each one averages or shards gradients
that the other one is working on. Other synchronisers wrap the model (DistributedDataParallel and
similar), replace its parameters (FSDP2's are DTensors, FSDP's are flat), hook the parameters, or
wrap the optimizer. Frameworks do so on a script's behalf, often after our optimizer was made. So we
check when the optimizer is made, when a module is called for the first time, and before the first
gradient is sent.

Classes and hooks are recognised by the module that defines them, so none of these is imported.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.optim import Optimizer

_WRAPPERS: Mapping[str, frozenset[str]] = {
    "DistributedDataParallel": frozenset({"torch", "apex", "byteps", "megatron"}),
    "FullyShardedDataParallel": frozenset({"torch", "fairscale", "megatron"}),
    "FSDPModule": frozenset({"torch"}),
    "DDP": frozenset({"torch"}),  # what replicate() makes of a module's class
    "ShardedDataParallel": frozenset({"fairscale"}),
    "DeepSpeedEngine": frozenset({"deepspeed"}),
    "PipelineEngine": frozenset({"deepspeed"}),
}
"""Module classes that average or shard gradients, and the packages that define them."""
_HOOKING = (
    "apex",
    "byteprophet.torch.in_place",
    "byteps",
    "deepspeed",
    "fairscale",
    "horovod",
    "megatron",
    "torch.distributed",
)
"""Modules and packages whose hooks on a parameter exchange or consume its gradient."""
_OPTIMIZERS = ("byteps", "deepspeed", "fairscale", "horovod")
"""Packages whose optimizers exchange gradients."""
_ADVICE = (
    "keep one of them: the plain model with DistributedOptimizer, or the plain optimizer with {} "
    "(Accelerate, transformers.Trainer and Lightning wrap the model themselves: give them the "
    "plain optimizer)"
)


replaced: weakref.WeakSet[nn.Module] = weakref.WeakSet()
"""Synchronisers whose exchange ours has replaced, so they exchange nothing (``torch/ddp``).

Those that ours has made itself exchange the gradients of their own parameters only, which are
DTensors (``torch/fully_sharded.py``). They are here, too.
"""


def refuse_optimizer(optimizer: Optimizer) -> None:
    """Raises ``RuntimeError`` if ``optimizer`` exchanges gradients itself."""
    for base in type(optimizer).__mro__:
        package = base.__module__.partition(".")[0]
        if package in _OPTIMIZERS:
            raise RuntimeError(
                f"byteprophet: this optimizer is {package}'s {base.__qualname__}, which exchanges "
                "gradients itself: pass the original optimizer to DistributedOptimizer"
            )


def refuse_parameter(name: str, parameter: Tensor) -> None:
    """Raises ``RuntimeError`` if another synchroniser handles the gradient of ``parameter``."""
    owner = owner_of(parameter)
    if owner:
        raise RuntimeError(_line(owner, name))


def refuse_others(
    optimizer: Optimizer, named: Sequence[tuple[str, Tensor]], model: nn.Module | None
) -> None:
    """Raises ``RuntimeError`` if another synchroniser exchanges these gradients, or will.

    ``named``: the parameters of ``optimizer`` that we exchange, with their names.
    """
    refuse_optimizer(optimizer)
    for name, parameter in named:
        refuse_parameter(name, parameter)
    if model is not None:
        refuse_within(model, dict(named))


def refuse_within(model: nn.Module, ours: Mapping[str, Tensor]) -> None:
    """Raises ``RuntimeError`` if a module of ``model`` handles one of our parameters, too."""
    for module in model.modules():
        if is_synchroniser(module):
            refuse_module(module, ours)


def is_synchroniser(module: nn.Module) -> bool:
    """Whether ``module`` averages or shards gradients."""
    return bool(_wrapper(type(module)))


def refuse_module(
    module: nn.Module, ours: Mapping[str, Tensor], *, may_replace: bool = True
) -> None:
    """Raises ``RuntimeError`` if ``module``, another synchroniser, handles one of our parameters.

    ``ours`` holds our parameters, by name. ``may_replace``: whether the script may have sharded
    ours, so that the module has other tensors of the same names.
    """
    if not _exchanges(module):
        return
    ignored = set(getattr(module, "parameters_to_ignore", ()))
    names = {id(parameter): name for name, parameter in ours.items()}
    for name, parameter in module.named_parameters():
        inner = name.removeprefix("module.")
        if not parameter.requires_grad or inner in ignored:
            continue
        replaced = may_replace and is_sharded(parameter) and inner in ours
        known = names.get(id(parameter), inner if replaced else None)
        if known is not None:
            raise RuntimeError(_line(_wrapper(type(module)), known))


def _line(owner: str, name: str) -> str:
    return (
        f"byteprophet: the gradient of '{name}' has two synchronisers, DistributedOptimizer and "
        f"{owner}, and would be wrong: {_ADVICE.format(owner)}"
    )


def _wrapper(kind: type) -> str:
    """The name of a synchroniser's class, for messages; "" for any other class."""
    for base in kind.__mro__:
        package = base.__module__.partition(".")[0]
        if package in _WRAPPERS.get(base.__name__, ()):
            return base.__name__ if package == "torch" else f"{package}'s {base.__name__}"
    return ""


def _exchanges(module: Any) -> bool:
    """Whether ``module`` exchanges gradients now.

    It does not within ``no_sync()``, while gradients are disabled, or in a group of one rank.
    """
    group = getattr(module, "process_group", None)
    alone = isinstance(group, distributed.ProcessGroup) and group.size() == 1
    if alone or module in replaced or not torch.is_grad_enabled():
        return False
    return bool(getattr(module, "require_backward_grad_sync", True))


def owner_of(parameter: Tensor) -> str:
    """Who else handles the gradient of ``parameter``, for messages; "" if nobody does."""
    if is_sharded(parameter):
        return "the parallelism that made it a DTensor (fully_shard, tensor parallelism)"
    if _has_base(parameter, "FlatParameter"):
        return "FullyShardedDataParallel"
    for hook in _hooks(parameter):
        module = getattr(hook, "__module__", None) or ""
        if module.startswith(_HOOKING):
            return f"a hook of {module}"
    return ""


def is_sharded(parameter: Tensor) -> bool:
    """Whether each rank has a shard of ``parameter`` only (a DTensor)."""
    return _has_base(parameter, "DTensor")


def _has_base(parameter: Tensor, name: str) -> bool:
    return any(base.__name__ == name for base in type(parameter).__mro__)


def _hooks(parameter: Any) -> Iterable[Any]:
    for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        yield from (getattr(parameter, name, None) or {}).values()
