"""Which models stay with DistributedDataParallel's own exchange, and why.

Each function returns a reason as a clause for messages, or "". Ranks may run different parts of a
script, so one of them may have a reason that others do not have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from byteprophet.torch.front import other_synchronisers
from byteprophet.torch.front.optimizer_class import Distributed
from byteprophet.torch.front.view_step import needs_closure
from byteprophet.torch.tensors import pending
from byteprophet.torch.tensors.dense import is_dense, shares_memory

_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_HOOK_DATA = "comm_hook"  # what the logging data of DistributedDataParallel calls a hook's name
_OPTIONS: Mapping[str, str] = {
    "mixed_precision": "it has mixed_precision",
    "_delay_all_reduce_params": "it has delay_all_reduce_named_params",
    "_use_python_reducer": "torch.compile replaces its reducer (python_reducer)",
    "skip_all_reduce_unused_params": "it has skip_all_reduce_unused_params",
    "buffer_hook": "it has a communication hook for buffers",
    "is_multi_device_module": "it is on several devices",
}
"""Attributes of DistributedDataParallel that ours does not follow, if they are set."""


def why_group(model: DistributedDataParallel) -> str:
    """Why the process group of ``model`` is not one of ours. Only its ranks know the model."""
    ranks = distributed.get_process_group_ranks(model.process_group)
    if sorted(ranks) != [*range(distributed.get_world_size())]:
        return "its process group does not have all ranks"
    return ""


def why_model(model: DistributedDataParallel, parameters: Mapping[str, Tensor]) -> str:
    """Why ``model``, whose reducer exchanges ``parameters``, cannot use our synchronisers."""
    for name, reason in _OPTIONS.items():
        if getattr(model, name, None):
            return reason
    if model._comm_hooks or model._get_ddp_logging_data().get(_HOOK_DATA):  # type: ignore[no-untyped-call]
        return "it has a communication hook"
    for name, module in model.module.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            return f"the gradient of {name!r} is sparse"
        if other_synchronisers.is_synchroniser(module):
            return f"{name!r} exchanges gradients itself"
    return _first(_why_parameter, parameters)


def why_optimizer(optimizer: Optimizer) -> str:
    """Why ``optimizer`` cannot get a front."""
    kind = type(optimizer)
    if isinstance(optimizer, Distributed):
        return "its optimizer is a DistributedOptimizer"
    try:
        other_synchronisers.refuse_optimizer(optimizer)
    except RuntimeError:
        return f"{kind.__qualname__} of {kind.__module__} exchanges gradients itself"
    if any(base.__module__.startswith("torch.distributed.") for base in kind.__mro__):
        return f"{kind.__name__} of torch.distributed communicates itself"
    if needs_closure(kind):
        return f"{kind.__name__} needs all gradients at once"
    return ""


def _why_parameter(parameter: Any) -> str:
    if not pending.can_mark(parameter):
        return f"is a {type(parameter).__name__}"
    if parameter.dtype not in _DTYPES:
        return f"is of {parameter.dtype}"
    if not is_dense(parameter):
        return "has gaps or overlaps in memory"
    if shares_memory(parameter):
        return "shares memory with other tensors"
    return _why_hooked(parameter)


def why_hooked(parameters: Mapping[str, Tensor]) -> str:
    """Why a model with these ``parameters`` can no longer use our synchronisers, if it could."""
    return _first(_why_hooked, parameters)


def _first(why: Callable[[Any], str], parameters: Mapping[str, Tensor]) -> str:
    """The first reason that ``why`` gives against one of ``parameters``; "": there is none."""
    for name, parameter in parameters.items():
        reason = why(parameter)
        if reason:
            return f"parameter {name!r} {reason}"
    return ""


def _why_hooked(parameter: Any) -> str:
    if hasattr(parameter, "_in_backward_optimizers"):
        return "is updated in backward by an optimizer of its own"
    if _others(parameter):
        return "has a hook that runs after its gradient is computed"
    return ""


def _others(parameter: Any) -> Iterable[Any]:
    """Hooks that would see a gradient before it is an average, or while it is exchanged."""
    hooks = (getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).values()
    return [hook for hook in hooks if not _is_ours(hook)]


def _is_ours(hook: Any) -> bool:
    return bool(getattr(hook, "__module__", "").startswith("byteprophet."))
