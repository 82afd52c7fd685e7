"""The elements of a tensor as they lie in memory, whatever its shape and strides.

Shares of a parameter, of its gradient and of the optimizer's state are ranges of these elements, so
all three must lie in the same order.
"""

from __future__ import annotations

import torch
from torch import Tensor


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill one range of memory, each place once."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 0:
            return True
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True


def flat(tensor: Tensor) -> Tensor:
    """A view of one dimension, in memory order, of a tensor that ``is_dense``; no gradients."""
    return torch.as_strided(tensor.detach(), (tensor.numel(),), (1,))


def arranged(tensor: Tensor, like: Tensor) -> Tensor:
    """``tensor``, or a copy of it, with elements in memory as those of ``like``, which is dense."""
    if tensor.stride() == like.stride() and is_dense(tensor):
        return tensor
    return torch.empty_like(like, dtype=tensor.dtype, requires_grad=False).copy_(tensor)


def share_of(elements: int, rank: int, size: int) -> slice:
    """The elements of ``elements`` that are ``rank``'s (native/exchange/shares.h)."""
    return slice(rank * elements // size, (rank + 1) * elements // size)
