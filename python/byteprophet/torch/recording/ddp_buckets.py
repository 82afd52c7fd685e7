"""The buckets of ``DistributedDataParallel``: which ones it uses, and whether others can be given.

DistributedDataParallel makes its first buckets in the reversed order of registration. In the second
iteration it rebuilds them, once, in the order in which gradients became ready in the first one. Its
logging data tells of the rebuilt buckets from the third iteration on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

Buckets = tuple[tuple[str, ...], ...]
"""The names of each bucket's parameters, in the order in which their gradients become ready."""


def reduced_parameters(module: nn.Module) -> dict[str, Tensor]:
    """The parameters of ``module`` that DistributedDataParallel reduces, in its order."""
    ignored = getattr(module, "_ddp_params_and_buffers_to_ignore", ())
    return {
        name: parameter
        for name, parameter in module.named_parameters()
        if parameter.requires_grad and name not in ignored
    }


def rebuilt_buckets(model: DistributedDataParallel) -> Buckets | None:
    """The buckets of ``model``; None as long as they were not rebuilt, which may be for ever.

    Must not be called in a communication hook, which holds the lock of the logging data.
    """
    data: Mapping[str, Any] = model._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    told = data.get("rebuilt_per_bucket_param_indices", "")
    if not told:
        return None
    names = [*reduced_parameters(model.module)]
    return tuple(tuple(names[int(index)] for index in bucket.split()) for bucket in told.split(","))


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
    return ""


def why_not_cast(module: nn.Module) -> str:
    """Why the gradients of ``module`` cannot travel in another type; "" if they can."""
    for name, parameter in reduced_parameters(module).items():
        if parameter.dtype != torch.float32:
            return f"parameter {name!r} is of {parameter.dtype}, not of torch.float32"
    return ""
