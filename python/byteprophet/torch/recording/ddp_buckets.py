"""The buckets of ``DistributedDataParallel``: which ones it uses, and whether others can be given.

DistributedDataParallel makes its first buckets in the reversed order of registration. In the second
iteration it rebuilds them, once, in the order in which gradients became ready in the first one. Its
logging data tells of the rebuilt buckets from the third iteration on.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

Buckets = tuple[tuple[str, ...], ...]
"""The names of each bucket's parameters, in the order in which their gradients become ready."""

LIMITS = "bucket_cap_mb_list"
"""The argument of DistributedDataParallel that gives each bucket a limit of its own."""

NO_LIMITS = "this torch takes no limit for each bucket, which torch 2.13 does"
"""What ``why_fixed`` says if nothing else is in the way of other buckets."""


class InPlace(DistributedDataParallel):
    """One that nobody calls: it runs in hooks of its module (``torch/in_place.py``).

    ``names``: of parameters, by ``id``, as the optimizer was given them.
    """

    names: Mapping[int, str]


def called(model: nn.Module) -> nn.Module:
    """The module whose calls are those of ``model``, which may be an ``InPlace``."""
    module: nn.Module = model.module if isinstance(model, InPlace) else model
    return module


def reduced_parameters(module: nn.Module) -> dict[str, Tensor]:
    """The parameters of ``module`` that DistributedDataParallel reduces, in its order.

    It compares ignored names with ``<module>.<parameter>``, of which the first is empty for the
    root's. A parameter of several modules is ignored if it is under all of its names.
    """
    ignored = getattr(module, "_ddp_params_and_buffers_to_ignore", ())
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    return {
        names[id(parameter)]: parameter
        for prefix, each in module.named_modules()
        for name, parameter in each.named_parameters(recurse=False)
        if parameter.requires_grad and f"{prefix}.{name}" not in ignored
    }


def named_parameters(
    model: DistributedDataParallel, module: nn.Module
) -> list[tuple[str, nn.Parameter]]:
    """All parameters of ``module``, with the names that ``model`` has for them."""
    named = [*module.named_parameters()]
    if not isinstance(model, InPlace):
        return named
    return [(model.names.get(id(parameter), name), parameter) for name, parameter in named]


def rebuilt_buckets(model: DistributedDataParallel) -> Buckets | None:
    """The buckets of ``model``; None as long as they were not rebuilt, which may be for ever.

    Must not be called in a communication hook, which holds the lock of the logging data.
    """
    data: Mapping[str, Any] = model._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    told = data.get("rebuilt_per_bucket_param_indices", "")
    if not told:
        return None
    name_of = {id(each): name for name, each in named_parameters(model, model.module)}
    names = [name_of[id(each)] for each in reduced_parameters(model.module).values()]
    return tuple(tuple(names[int(index)] for index in bucket.split()) for bucket in told.split(","))


def takes_limits() -> bool:
    """Whether DistributedDataParallel takes a limit for each bucket."""
    return LIMITS in inspect.signature(DistributedDataParallel.__init__).parameters


def why_fixed(module: nn.Module, static_graph: bool, find_unused_parameters: bool) -> str:
    """Why no limits can be given by which the buckets become exactly as wanted; "" if they can."""
    if static_graph:
        return "static_graph=True rebuilds its buckets in another way"
    if find_unused_parameters:
        return "find_unused_parameters=True never rebuilds its buckets"
    parameters = reduced_parameters(module).values()
    for what, kinds in (
        ("types", {str(parameter.dtype) for parameter in parameters}),
        ("devices", {str(parameter.device) for parameter in parameters}),
    ):
        if len(kinds) > 1:
            return f"parameters of several {what} ({', '.join(sorted(kinds))}) share no bucket"
    for name, each in module.named_modules():
        if isinstance(each, nn.Embedding | nn.EmbeddingBag) and each.sparse:
            return f"the sparse gradient of {name!r} has a bucket to itself"
    return "" if takes_limits() else NO_LIMITS


def why_not_cast(module: nn.Module) -> str:
    """Why the gradients of ``module`` cannot travel in another type; "" if they can."""
    for name, parameter in reduced_parameters(module).items():
        if parameter.dtype != torch.float32:
            return f"parameter {name!r} is of {parameter.dtype}, not of torch.float32"
    return ""
