"""Clipping gradients of which each rank has its share: a norm travels, the gradients do not.

torch's functions look at every element, so all gradients would be gathered for them. But a rank
updates its share alone: it is enough that every rank clips its own. Who reads a gradient afterwards
gets the others' shares as they were clipped. Every rank must call these at the same place.

The norm of parts' norms is the norm of the whole. All ranks add the same numbers in the same order,
so they clip by the same norm, bit for bit.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from byteprophet.torch.agreement import Collection
from byteprophet.torch.dense import flat

if TYPE_CHECKING:
    from byteprophet.torch.front import Front

_NAME = "byteprophet.norm"
_WHAT = "norms of ranks' shares of the gradients"
_NEVER_ZERO = 1e-6  # as in torch


def by_value(
    front: Front, parameters: Sequence[Tensor], clip: Callable[..., Any], *args: Any, **kwargs: Any
) -> None:
    """``clip``, torch's ``clip_grad_value_``, of what this rank has."""
    with front.averages(parameters) as averages:
        parts = [_part(gradient, share) for gradient, share in averages]
        clip([_with_gradient(part) for part in parts], *args, **kwargs)


def by_norm(
    front: Front,
    parameters: Sequence[Tensor],
    clip: Callable[..., Any],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """What ``clip``, torch's ``clip_grad_norm_``, does; gives the total norm.

    Orders of 0 and below are torch's: parts without elements count in them.
    """
    order = float(norm_type)
    if order <= 0:
        front.synchronize()
        total: Tensor = clip(parameters, max_norm, norm_type, error_if_nonfinite, foreach)
        return total
    with front.averages(parameters) as averages:
        shares = [_part(gradient, share) for gradient, share in averages if share is not None]
        whole = [gradient for gradient, share in averages if share is None]
        mine = _as_integer(_norm(shares, order))
        collection = Collection(front.synchroniser, _NAME, mine, _WHAT)
        norms = [_as_float(norm) for norm in collection.wait(front.timeout_s)]
        norms.append(_norm(whole, order))
        total = torch.linalg.vector_norm(torch.tensor(norms, dtype=torch.float64), order)
        if error_if_nonfinite and not torch.isfinite(total):
            raise RuntimeError(
                f"clip_grad_norm_(): the total norm of order {order} is {float(total)}, gradients "
                "cannot be clipped by it (error_if_nonfinite=False would do it all the same)"
            )
        parts = [*shares, *whole]
        if parts:
            total = total.to(parts[0])
        coefficient = torch.clamp(max_norm / (total + _NEVER_ZERO), max=1.0)
        for part in parts:
            part.mul_(coefficient.to(part.device))
    return total


def _part(gradient: Tensor, share: slice | None) -> Tensor:
    return gradient if share is None else flat(gradient)[share]


def _with_gradient(part: Tensor) -> Tensor:
    shadow = part.detach()
    shadow.grad = part
    return shadow


def _norm(parts: Sequence[Tensor], order: float) -> float:
    """0 if there are none; asks a GPU once."""
    norms = [torch.linalg.vector_norm(part, order).double() for part in parts if part.numel()]
    return float(torch.linalg.vector_norm(torch.stack(norms), order)) if norms else 0.0


def _as_integer(value: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def _as_float(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])
