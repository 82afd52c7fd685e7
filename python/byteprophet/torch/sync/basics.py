"""BytePS' basic calls, by its servers or, in a job without servers, among the ranks.

How a job was started decides which: BytePS' roles have ``DMLC_NUM_WORKER``, and ranks that torchrun
or ``byteprophet run --servers 0`` has started have ``WORLD_SIZE``. Those with both use servers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from byteps.torch import ops
from torch import Tensor, distributed

_TOO_LARGE_BYTES = 1 << 32
"""BytePS counts a tensor's bytes in 32 bits, and ends the job at an overflow."""


def with_servers(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is a worker of a job with servers."""
    return bool(environment.get("DMLC_NUM_WORKER"))


def with_ranks(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is a rank of torch.distributed, or was started as one."""
    return bool(environment.get("WORLD_SIZE")) or distributed.is_initialized()


def without_servers(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process was started as a rank of a job without servers."""
    return bool(environment.get("WORLD_SIZE")) and not with_servers(environment)


def _calls() -> Any:
    """The module that has the calls."""
    if not without_servers():
        return ops
    from byteprophet.torch.sync import among_ranks

    return among_ranks


def check_size(what: str, tensor: Tensor) -> None:
    """Raise ``ValueError`` if ``tensor``, called ``what``, is too large for BytePS' offsets."""
    size_bytes = tensor.numel() * (4 if tensor.dtype == torch.bfloat16 else tensor.element_size())
    if size_bytes >= _TOO_LARGE_BYTES:
        raise ValueError(
            f"byteprophet: {what} takes {size_bytes} bytes on the way to servers, and BytePS sends "
            "less than 4 GiB of one tensor: use several, or no servers"
        )


def size() -> int:
    """The number of ranks."""
    return int(_calls().size())


def rank() -> int:
    """The rank of this process, 0 to ``size() - 1``."""
    return int(_calls().rank())


def local_size() -> int:
    """The number of ranks on this host."""
    return int(_calls().local_size())


def local_rank() -> int:
    """The number of this rank on its host, from 0."""
    return int(_calls().local_rank())


def declare(name: str, **arguments: Any) -> int:
    """Declare a tensor. ``arguments`` choose one of BytePS' compressors.

    Without servers, nothing needs to be declared, and there are no such compressors: ValueError.
    """
    if not without_servers():
        return int(ops.declare(name, **arguments))
    if arguments:
        raise ValueError(f"declare({name!r}, ...): BytePS' compressors need servers")
    return 0


def push_pull_async_inplace(
    tensor: Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
) -> int:
    """Begin to average (or sum) ``tensor`` itself; returns a handle for ``synchronize``.

    Raises ``ValueError`` if it is too large for BytePS.
    """
    if not without_servers():
        check_size(f"tensor '{name}'", tensor)
    return int(_calls().push_pull_async_inplace(tensor, average, name, version, priority))


def push_pull_inplace(
    tensor: Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
) -> Tensor:
    """Average (or sum) ``tensor`` over all ranks."""
    return synchronize(push_pull_async_inplace(tensor, average, name, version, priority))


def poll(handle: int) -> bool:
    """Whether ``synchronize(handle)`` would return at once."""
    return bool(_calls().poll(handle))


def synchronize(handle: int) -> Tensor:
    """Wait for a call, and return its tensor."""
    result: Tensor = _calls().synchronize(handle)
    return result
