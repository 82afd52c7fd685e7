"""Improved versions of BytePS' own operations.

* ``push_pull`` and ``push_pull_async`` accept every memory layout. ``push_pull`` has a correct
  gradient.
* ``broadcast_parameters`` sends bytes, so it works for every type and layout, and the result is
  identical to the root's tensor, bit for bit.
* ``broadcast_optimizer_state`` needs no optimizer step to create missing state, and the ranks'
  states may differ beforehand.

After ``BYTEPROPHET_TIMEOUT_S``, waits end with an error that names the tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from byteps.torch import Compression
from torch import Tensor
from torch.optim import LBFGS, Optimizer

from byteprophet.tensor_names import PARAMETER_PREFIX
from byteprophet.torch.front.other_synchronisers import is_sharded
from byteprophet.torch.live_fronts import finish_all, live_fronts
from byteprophet.torch.sync import basics
from byteprophet.torch.tensors import state_text
from byteprophet.torch.tensors.naming import optimizer_parameters

_CHUNK_BYTES = 1 << 14
_STATE = "broadcast_optimizer_state"
_IN_FLIGHT = 16  # concurrent broadcasts: BytePS uses a thread for the first one of each name


def push_pull_async(
    tensor: Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
) -> int:
    """Average (or sum) a copy of ``tensor`` over all ranks; ``synchronize(handle)`` returns it."""
    result = tensor.detach().clone(memory_format=torch.contiguous_format)
    return int(basics.push_pull_async_inplace(result, average, name, version, priority))


class _PushPull(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, average: bool, name: str, version: int, priority: int
    ) -> Tensor:
        ctx.arguments = average, name, version, priority
        handle = push_pull_async(tensor, average, name, version, priority)
        return basics.synchronize(handle)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        average, name, version, priority = ctx.arguments
        reduced = _reduce(gradient, average, f"{name}.backward", version, priority)
        return reduced, None, None, None, None


def _reduce(tensor: Tensor, average: bool, name: str, version: int, priority: int) -> Tensor:
    result: Tensor = cast(Any, _PushPull).apply(tensor, average, name, version, priority)
    return result


def push_pull(
    tensor: Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    compression: Any = Compression.none,
) -> Tensor:
    """Return the average (or sum) of ``tensor`` over all ranks, as a new tensor.

    The operation is differentiable. Raises ``ValueError`` without a ``name``.
    """
    if name is None:
        raise ValueError(
            "push_pull needs a name, the same one on every rank: push_pull(t, name=...)"
        )
    compressed, context = compression.compress(tensor)
    reduced = _reduce(compressed, average, name, version, priority)
    result: Tensor = compression.decompress(reduced, context)
    return result


def broadcast_parameters(
    params: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]] | Iterable[Tensor],
    root_rank: int,
    prefix: str = PARAMETER_PREFIX,
) -> None:
    """Copy tensors from rank ``root_rank`` to all others, bit for bit.

    ``params`` is a ``state_dict()``, ``named_parameters()``, or a list of tensors, in the same
    order on every rank. Tensors of which each rank has a shard are the same on all ranks already.
    """
    if isinstance(params, Mapping):
        named = sorted(params.items())
    elif isinstance(params, Tensor):
        raise ValueError(
            "broadcast_parameters takes a dictionary or list of tensors, not one tensor"
        )
    else:
        named = [
            item if isinstance(item, tuple) else (f"noname.{number}", item)
            for number, item in enumerate(params)
        ]
    finish_all()
    _broadcast(
        [
            (prefix + name, tensor)
            for name, tensor in named
            if isinstance(tensor, Tensor) and not is_sharded(tensor)
        ],
        root_rank,
        "broadcast_parameters",
    )


def broadcast_optimizer_state(
    optimizer: Optimizer, root_rank: int, prefix: str = PARAMETER_PREFIX
) -> None:
    """Copy an optimizer's state and options from rank ``root_rank`` to all others.

    Raises ``ValueError`` for LBFGS, whose state does not belong to single parameters, and for
    values in the state that are neither tensors nor plain data.
    """
    if isinstance(optimizer, LBFGS):
        raise ValueError("the state of LBFGS cannot be broadcast")
    if basics.size() == 1:
        return
    finish_all()
    state = optimizer.state_dict()
    text, tensors = state_text.to_text(state)
    is_root = basics.rank() == root_rank
    text = _broadcast_text(text, root_rank, f"{prefix}byteprophet.state")
    if is_root:
        tensors = [each.cpu() for each in tensors]  # the others receive into tensors on CPUs
    else:
        state, tensors = state_text.from_text(text)
    _broadcast(
        [
            (f"{prefix}byteprophet.state.{number}.{tensor.nbytes}", tensor)
            for number, tensor in enumerate(tensors)
        ],
        root_rank,
        _STATE,
    )
    if not is_root or _is_loaded_together(optimizer):
        optimizer.load_state_dict(state)


def _is_loaded_together(optimizer: Optimizer) -> bool:
    """Whether ranks compare what was not sent of compressed gradients when they load a state."""
    parameters = optimizer_parameters(optimizer)
    return any(front.compresses and front.manages(parameters) for front in live_fronts())


def _broadcast_text(text: str, root_rank: int, name: str) -> str:
    """Broadcast rank ``root_rank``'s text and return it.

    The text is sent in chunks of one size, because in BytePS the size of a name never changes.
    """
    body = torch.tensor(list(text.encode()), dtype=torch.uint8)
    length = torch.tensor([body.numel()])
    _broadcast([(f"{name}.length", length)], root_rank, _STATE)
    whole = torch.zeros(-(-int(length) // _CHUNK_BYTES) * _CHUNK_BYTES, dtype=torch.uint8)
    if basics.rank() == root_rank:
        whole[: body.numel()] = body
    for chunk in torch.split(whole, _CHUNK_BYTES):
        _broadcast([(f"{name}.text", chunk)], root_rank, _STATE)
    return bytes(whole[: int(length)].tolist()).decode()


def _broadcast(named: list[tuple[str, Tensor]], root_rank: int, call: str) -> None:
    """Overwrite tensors by rank ``root_rank``'s, by summing bytes. The other ranks send zeros."""
    if not 0 <= root_rank < basics.size():
        raise ValueError(f"root_rank={root_rank}: this job has ranks 0 to {basics.size() - 1}")
    if basics.size() == 1:
        return
    named = [(name, tensor) for name, tensor in named if tensor.numel() > 0]
    for name, _ in named:
        basics.declare(name)
    for first in range(0, len(named), _IN_FLIGHT):
        sent = []
        for name, tensor in named[first : first + _IN_FLIGHT]:
            # A state_dict contains a tied weight twice, so it may be in flight twice. Each result
            # is the root's bytes: in its tensor they stay as they are, and others have memory of
            # their own for each.
            whole = tensor.detach().contiguous()
            if basics.rank() != root_rank:
                whole = torch.zeros_like(whole)
            wire = whole.reshape(-1).view(torch.uint8)
            handle = basics.push_pull_async_inplace(wire, average=False, name=name)
            sent.append((handle, whole, tensor))
        for handle, whole, tensor in sent:
            basics.synchronize(handle, call)
            if basics.rank() != root_rank:
                with torch.no_grad():
                    tensor.copy_(whole)
