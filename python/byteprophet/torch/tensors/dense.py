"""Accesses the elements of a tensor in memory order, whatever its shape and strides.

Shards of a parameter, of its gradient and of the optimizer's state are ranges of these elements, so
all three must have the same order in memory.
"""

from __future__ import annotations

import torch
from torch import Tensor

from byteprophet.torch.tensors import pending


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill one range of memory without gaps or overlaps."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 0:
            return True
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True


def is_expanded(tensor: Tensor) -> bool:
    """Whether several elements are at one place in memory, as ``Tensor.expand`` makes them."""
    places = zip(tensor.stride(), tensor.shape, strict=True)
    return any(stride == 0 and size > 1 for stride, size in places)


def shares_memory(tensor: Tensor) -> bool:
    """Whether ``tensor`` is only a part of its memory, so that others may have the rest, or all."""
    with pending.values():
        return bool(tensor.untyped_storage().nbytes() > tensor.nbytes)


def is_shared(memory: torch.UntypedStorage) -> bool:
    """Whether at least two tensors use ``memory``, such as one and a view that autograd holds."""
    # One more use is that of ``memory`` itself.
    return bool(torch._C._storage_Use_Count(memory._cdata) > 2)


def addresses(tensor: Tensor) -> range:
    """The addresses in memory between the first and the last element, both included."""
    places = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in places)
    start = tensor.data_ptr()
    return range(start, start + (last + 1) * tensor.element_size())


def flat(tensor: Tensor) -> Tensor:
    """A detached one-dimensional view, in memory order, of a dense tensor."""
    return torch.as_strided(tensor.detach(), (tensor.numel(),), (1,))


def arranged(tensor: Tensor, like: Tensor) -> Tensor:
    """Return ``tensor``, or a copy of it, with the strides of ``like``, which must be dense."""
    if tensor.stride() == like.stride() and is_dense(tensor):
        return tensor
    return torch.empty_like(like, dtype=tensor.dtype, requires_grad=False).copy_(tensor)
