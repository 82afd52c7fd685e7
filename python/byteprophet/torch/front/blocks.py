"""Cuts the update of a large tensor into blocks, which stay in a core's cache.

The optimizers of torch make one pass over memory per operation: six to eight passes over a
parameter, its gradient, its state and temporary tensors. A tensor larger than the cache comes from
memory in every pass, and the kernel maps and clears the memory of large temporary tensors anew each
time. A block is so small that it comes from memory once, and its temporary tensors are reused.

The bits do not change. Each element is updated on its own (``is_elementwise``). But torch rounds an
element differently if it is one of the last few of an operation, which do not fill a vector (in
``lerp_``, for example). Every block except the last one therefore has a multiple of a vector's
elements, so that these are the same elements as without blocks. For the same reason, nothing is cut
if torch uses several threads: it gives each thread an equal part of a tensor, whose ends would move.

State that has the shape of the parameter is cut as well. Other state is one value for all elements,
such as the number of steps. Each block then has a copy of its own, because every block increments
it. All copies end equal, and one of them replaces the original.

Threads: the updater's, and nobody else uses the tensors meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from byteprophet.torch.tensors.dense import flat, is_dense

BLOCK_ELEMENTS = 1 << 16
"""A multiple of a vector's elements. With gradient, state and a temporary tensor, five times as
many float32 values take 1.3 MB."""

_WITHOUT_BLOCKS = ("fused", "foreach", "capturable", "differentiable")
"""Options of torch's optimizers: the kernels chosen by the first two make their own passes."""


@dataclass(frozen=True)
class Blocks:
    """One parameter's update in blocks.

    Attributes:
        parameters: the blocks of the parameter, each with the gradient of the same elements.
        states: the state of each block.
        parts: the views that these states have of ``state``, by name.
        state: the state of the whole parameter.
    """

    parameters: tuple[Tensor, ...]
    states: list[dict[str, Any]]
    parts: Mapping[str, tuple[Tensor, ...]]
    state: dict[str, Any]

    def join(self) -> None:
        """Take what the update has changed into the state of the whole parameter."""
        assert self.states[0].keys() == self.state.keys(), "an update has added state"
        for name in self.states[0]:
            if name not in self.parts:
                self.state[name] = self.states[0][name]
                continue
            for part, state in zip(self.parts[name], self.states, strict=True):
                if state[name] is not part:  # not updated in place
                    part.copy_(state[name])


def may_cut(options: Mapping[str, Any]) -> bool:
    """Whether updates with the ``options`` of a parameter group may be cut now, in this thread."""
    return torch.get_num_threads() == 1 and not any(options.get(name) for name in _WITHOUT_BLOCKS)


def cut(parameter: Tensor, state: dict[str, Any]) -> Blocks | None:
    """Cut the update of ``parameter``, which has a gradient, or return None if it stays whole.

    The parameter, its gradient and its state must be on the CPU and have the same order in memory.
    """
    gradient = parameter.grad
    assert gradient is not None
    if parameter.numel() <= BLOCK_ELEMENTS or not _is_alike(gradient, parameter):
        return None
    if not (parameter.is_cpu and parameter.is_floating_point() and is_dense(parameter)):
        return None
    parts, single = {}, {}
    for name, value in state.items():
        if value is None:  # made by the update
            return None
        if not isinstance(value, Tensor) or value.dim() == 0:
            single[name] = value
        elif _is_alike(value, parameter):
            parts[name] = flat(value).split(BLOCK_ELEMENTS)
        else:
            return None
    blocks = flat(parameter).split(BLOCK_ELEMENTS)
    states = []
    for number, (block, block_gradient) in enumerate(
        zip(blocks, flat(gradient).split(BLOCK_ELEMENTS), strict=True)
    ):
        block.grad = block_gradient
        own = {name: _copy(value) for name, value in single.items()}
        # In the order of ``state``, which saved states show.
        states.append({name: own[name] if name in own else parts[name][number] for name in state})
    return Blocks(blocks, states, parts, state)


def _is_alike(tensor: Tensor, parameter: Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and tensor.device == parameter.device
        and tensor.shape == parameter.shape
        and tensor.stride() == parameter.stride()
    )


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value
