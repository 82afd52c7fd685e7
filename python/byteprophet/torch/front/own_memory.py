"""Gives gradients memory of their own, because each is averaged in place.

Autograd may make the gradients of several parameters views of one tensor, as after
``torch.stack(parameters).sum(0)``. When the first of these parameters has its gradient and sends
it, the others do not have theirs yet, so overlaps cannot be looked for. Instead, a gradient that
backward has made is copied if anything else uses its memory. A gradient that was there before is
not: it may be a part of a buffer that the script reads. It is known by its memory, which is that
after the last backward pass, or by being a view, which autograd's gradients never are: they are
detached. Before a parameter's first backward pass, a hook looks whether it has a gradient.

The script itself may set gradients in one memory, as ``torch.autograd.grad`` returns them. They are
all known when they are sent, so only those that overlap are copied. So is one whose own elements
overlap, such as that of a sum.

Threads: the training thread; ``before_backward`` and ``after_backward`` run in autograd's.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch

from byteprophet.torch.front.slots import Slot
from byteprophet.torch.tensors import pending
from byteprophet.torch.tensors.dense import addresses, is_expanded, is_shared


def before_backward(slot: Slot) -> None:
    """Note the memory of the gradient of ``slot``, if it has one, to which backward will add."""
    gradient = slot.parameter.grad
    if gradient is not None and gradient.layout is torch.strided:
        with pending.values():
            slot.memory = weakref.ref(gradient.untyped_storage())


def after_backward(slot: Slot) -> None:
    """Copy the gradient of ``slot`` if backward has just made it and it shares its memory."""
    gradient = slot.parameter.grad
    if gradient is None or gradient.layout is not torch.strided:
        return
    memory = gradient.untyped_storage()
    if is_shared(memory):
        is_known = slot.memory is not None and slot.memory() is memory
        if not is_known and not gradient._is_view():
            gradient = slot.parameter.grad = gradient.clone()
            memory = gradient.untyped_storage()
    slot.memory = weakref.ref(memory)


def separate(slots: Iterable[Slot]) -> None:
    """Copy gradients of ``slots`` that overlap with another one of them, or with themselves."""
    found = []
    with pending.values():  # this reads no values of gradients
        for slot in slots:
            gradient = slot.parameter.grad
            if gradient is not None and gradient.layout is torch.strided and gradient.numel() > 0:
                if is_expanded(gradient):
                    gradient = slot.parameter.grad = gradient.clone()
                found.append((addresses(gradient), slot, gradient))
    end = 0
    for memory, slot, gradient in sorted(found, key=lambda each: each[0].start):
        if memory.start < end:
            slot.parameter.grad = gradient.clone()
        end = max(end, memory.stop)
