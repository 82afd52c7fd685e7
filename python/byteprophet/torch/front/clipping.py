"""Clips sharded gradients: ranks exchange one norm each instead of the gradients.

torch's functions read every element, so all gradients would have to be gathered for them. But each
rank updates only its own shard, so it only needs to clip that shard. If a gradient is unsharded
afterwards, it contains the other ranks' clipped shards. Every rank must call these functions at the
same place in the script.

The norm of the shards' norms is the norm of the whole gradient. All ranks add the same numbers in
the same order, so they clip by the same norm, bit for bit.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from byteprophet.torch.live_fronts import LiveFront
from byteprophet.torch.sync.agreement import Collection
from byteprophet.torch.sync.completion import called
from byteprophet.torch.tensors.dense import flat
from byteprophet.torch.tensors.sparse import values_of

_NAME = "byteprophet.norm"
_WHAT = "norms of ranks' shards of the gradients"
_NEVER_ZERO = 1e-6  # as in torch


def by_value(
    front: LiveFront,
    parameters: Sequence[Tensor],
    clip: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> None:
    """Apply ``clip``, torch's ``clip_grad_value_``, to this rank's shards and whole gradients."""
    with front.averages(parameters) as averages:
        parts = [_part(gradient, shard) for gradient, shard in averages]
        clip([_with_gradient(part) for part in parts], *args, **kwargs)


def by_norm(
    front: LiveFront,
    parameters: Sequence[Tensor],
    clip: Callable[..., Any],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Clip as ``clip``, torch's ``clip_grad_norm_``, does, and return the total norm.

    For orders of 0 and below, this averages whole gradients and calls ``clip`` itself, because
    shards without elements would change such a norm.
    """
    order = float(norm_type)
    if order <= 0:
        front.synchronize(called(clip))
        rows = by_rows(parameters)
        total: Tensor = clip(rows, max_norm, norm_type, error_if_nonfinite, foreach)
        return total
    with front.averages(parameters) as averages:
        if not averages:  # no rank has gradients
            none: Tensor = clip(parameters, max_norm, norm_type, error_if_nonfinite, foreach)
            return none
        shards = [_part(gradient, shard) for gradient, shard in averages if shard is not None]
        whole = [values_of(gradient) for gradient, shard in averages if shard is None]
        mine = _as_integer(_norm(shards, order))
        collection = Collection(front.synchroniser, _NAME, mine, _WHAT, called(clip))
        norms = [_as_float(norm) for norm in collection.wait(front.timeout_s)]
        norms.append(_norm(whole, order))
        total = torch.linalg.vector_norm(torch.tensor(norms, dtype=torch.float64), order)
        if error_if_nonfinite and not torch.isfinite(total):
            raise RuntimeError(
                f"clip_grad_norm_(): the total norm of order {order} is {float(total)}, gradients "
                "cannot be clipped by it (error_if_nonfinite=False clips nevertheless)"
            )
        parts = [*shards, *whole]
        if parts:
            common = functools.reduce(torch.promote_types, (each.dtype for each in parts))
            total = total.to(parts[0].device, common.to_real())
        coefficient = torch.clamp(max_norm / (total + _NEVER_ZERO), max=1.0)
        for part in parts:
            part.mul_(coefficient.to(part.device))
    return total


def norm_of(
    parameters: Sequence[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """The norm of this rank's gradients, which stay as they are."""
    given = (parameter.grad for parameter in parameters)
    gradients = [values_of(gradient) for gradient in given if gradient is not None]
    return nn.utils.get_total_norm(gradients, norm_type, error_if_nonfinite, foreach)


def nothing_of(*_arguments: Any, **_options: Any) -> None:
    """Gradients stay as they are."""


def by_rows(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Return ``parameters``, with stand-ins for those whose gradients are sparse.

    torch's functions take no sparse gradients. A stand-in has the values of the gradient's rows, in
    the same memory. All other rows are zeros, which change no norm of an order above 0.
    """
    return [
        each
        if each.grad is None or not each.grad.is_sparse
        else _with_gradient(values_of(each.grad))
        for each in parameters
    ]


def _part(gradient: Tensor, shard: slice | None) -> Tensor:
    return values_of(gradient) if shard is None else flat(gradient)[shard]


def _with_gradient(part: Tensor) -> Tensor:
    shadow = part.detach()
    shadow.grad = part
    return shadow


def _norm(parts: Sequence[Tensor], order: float) -> float:
    """The norm of all ``parts`` together, or 0 if there are none. Synchronises with a GPU once."""
    norms = [torch.linalg.vector_norm(part, order).double() for part in parts if part.numel()]
    return float(torch.linalg.vector_norm(torch.stack(norms), order)) if norms else 0.0


def _as_integer(value: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def _as_float(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])
