"""BytePS' own operations, and what they lack.

* ``push_pull`` and ``push_pull_async`` take every layout; ``push_pull`` has a right gradient.
* ``broadcast_parameters`` sends bytes: every type and layout works, and the bits are the root's.
* ``broadcast_optimizer_state`` takes no optimizer step to make up missing state, and ranks need
  not have the same state before.

Waits end with an error that names the tensor after ``BYTEPROPHET_TIMEOUT_S``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from byteps.torch import Compression, ops
from torch import Tensor
from torch.optim import LBFGS, Optimizer

from byteprophet.runtime_settings import RuntimeSettings
from byteprophet.torch import flush_points, state_text

_CHUNK_BYTES = 1 << 14
_POLL_S = 0.001
_IN_FLIGHT = 16  # broadcasts under way at once: the first one of a name takes a thread in BytePS


def push_pull_async(
    tensor: Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
) -> int:
    """Average (or sum) a copy of ``tensor`` over all ranks; ``synchronize(handle)`` returns it."""
    result = tensor.detach().clone(memory_format=torch.contiguous_format)
    return int(ops.push_pull_async_inplace(result, average, name, version, priority))


def _wait(handle: int, name: str) -> Tensor:
    """The result of an operation; ``RuntimeError`` if it is late."""
    timeout_s = RuntimeSettings.from_environment().timeout_s
    deadline_s = time.monotonic() + timeout_s
    while not ops.poll(handle):
        if time.monotonic() > deadline_s:
            raise RuntimeError(
                f"byteprophet: waited {timeout_s:g} s for '{name}': another rank may not have sent "
                "it (BYTEPROPHET_TIMEOUT_S sets the limit)"
            )
        time.sleep(_POLL_S)
    result: Tensor = ops.synchronize(handle)
    return result


class _PushPull(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, average: bool, name: str, version: int, priority: int
    ) -> Tensor:
        ctx.arguments = average, name, version, priority
        return _wait(push_pull_async(tensor, average, name, version, priority), name)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        average, name, version, priority = ctx.arguments
        reduced = _reduce(gradient, average, f"{name}.backward", version, priority)
        return reduced, None, None, None, None


def _reduce(tensor: Tensor, average: bool, name: str, version: int, priority: int) -> Tensor:
    result: Tensor = _PushPull.apply(tensor, average, name, version, priority)  # type: ignore[no-untyped-call]
    return result


def push_pull(
    tensor: Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    compression: Any = Compression.none,
) -> Tensor:
    """The average (or sum) of ``tensor`` over all ranks, as a new tensor; differentiable."""
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
    prefix: str = "Parameter.",
) -> None:
    """Copy tensors from rank ``root_rank`` to all others, bit for bit.

    ``params``: a ``state_dict()``, ``named_parameters()``, or a list of tensors, in the same order
    on every rank.
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
    flush_points.finish_all()
    _broadcast(
        [(prefix + name, tensor) for name, tensor in named if isinstance(tensor, Tensor)], root_rank
    )


def broadcast_optimizer_state(
    optimizer: Optimizer, root_rank: int, prefix: str = "Parameter."
) -> None:
    """Copy an optimizer's state and options from rank ``root_rank`` to all others.

    Raises ``ValueError`` for LBFGS, whose state does not belong to single parameters, and for
    values in the state that are neither tensors nor plain data.
    """
    if isinstance(optimizer, LBFGS):
        raise ValueError("the state of LBFGS cannot be broadcast")
    if ops.size() == 1:
        return
    flush_points.finish_all()
    state = optimizer.state_dict()
    text, tensors = state_text.to_text(state)
    is_root = ops.rank() == root_rank
    text = _broadcast_text(text, root_rank, f"{prefix}byteprophet.state")
    if not is_root:
        state, tensors = state_text.from_text(text)
    _broadcast(
        [
            (f"{prefix}byteprophet.state.{number}.{tensor.nbytes}", tensor)
            for number, tensor in enumerate(tensors)
        ],
        root_rank,
    )
    if not is_root:
        optimizer.load_state_dict(state)


def _broadcast_text(text: str, root_rank: int, name: str) -> str:
    """Rank ``root_rank``'s text, by chunks of one size: in BytePS, a name has one size for ever."""
    body = torch.tensor(list(text.encode()), dtype=torch.uint8)
    length = torch.tensor([body.numel()])
    _broadcast([(f"{name}.length", length)], root_rank)
    whole = torch.zeros(-(-int(length) // _CHUNK_BYTES) * _CHUNK_BYTES, dtype=torch.uint8)
    if ops.rank() == root_rank:
        whole[: body.numel()] = body
    for chunk in torch.split(whole, _CHUNK_BYTES):
        _broadcast([(f"{name}.text", chunk)], root_rank)
    return bytes(whole[: int(length)].tolist()).decode()


def _broadcast(named: list[tuple[str, Tensor]], root_rank: int) -> None:
    """Overwrite tensors by rank ``root_rank``'s: a sum of bytes to which the others add zeros."""
    if not 0 <= root_rank < ops.size():
        raise ValueError(f"root_rank={root_rank}: this job has ranks 0 to {ops.size() - 1}")
    if ops.size() == 1:
        return
    named = [(name, tensor) for name, tensor in named if tensor.numel() > 0]
    for name, _ in named:
        ops.declare(name)
    for first in range(0, len(named), _IN_FLIGHT):
        sent = []
        for name, tensor in named[first : first + _IN_FLIGHT]:
            # Not in place: a tied weight is in a state_dict twice, so it travels twice at a time,
            # and the first arrival must not become what the second one adds.
            whole = tensor.detach().contiguous()
            if ops.rank() != root_rank:
                whole = torch.zeros_like(whole)
            wire = whole.reshape(-1).view(torch.uint8)
            handle = ops.push_pull_async_inplace(wire, average=False, name=name)
            sent.append((handle, name, whole, tensor))
        for handle, name, whole, tensor in sent:
            _wait(handle, name)
            if ops.rank() != root_rank:
                with torch.no_grad():
                    tensor.copy_(whole)
