"""BytePS' basic calls, by its servers or, in a job without servers, among the ranks.

How a job was started decides which. BytePS' roles have ``DMLC_NUM_WORKER``. Ranks that torchrun or
``byteprophet run --servers 0`` has started have ``WORLD_SIZE``, and others have joined
torch.distributed by themselves. Those that are both use servers.

Threads: the training thread and autograd's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import torch
from byteps.torch import ops
from torch import Tensor, distributed

from byteprophet.errors import PeerLost, TimedOut
from byteprophet.runtime_settings import RuntimeSettings
from byteprophet.torch.sync import failures

_POLL_S = 0.001
_TOO_LARGE_BYTES = 1 << 32
"""BytePS counts a tensor's bytes in 32 bits, and ends the job at an overflow."""

_names: dict[int, str] = {}  # of calls that nobody has waited for yet, by handle


def with_servers(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is a worker of a job with servers."""
    return bool(environment.get("DMLC_NUM_WORKER"))


def with_ranks(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is a rank of torch.distributed, or was started as one."""
    return bool(environment.get("WORLD_SIZE")) or distributed.is_initialized()


def without_servers(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is a rank of a job without servers, or was started as one."""
    return with_ranks(environment) and not with_servers(environment)


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
    handle = int(_calls().push_pull_async_inplace(tensor, average, name, version, priority))
    _names[handle] = f"handle {handle}" if name is None else name
    return handle


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


def synchronize(handle: int, call: str = "push_pull") -> Tensor:
    """Wait for a call, and return its tensor.

    Args:
        handle: what ``push_pull_async_inplace`` returned.
        call: the function that all ranks must call, for the error message.

    Raises:
        TimedOut: it is not over after BYTEPROPHET_TIMEOUT_S.
        PeerLost: a rank that must take part has left, or cannot be reached.
    """
    if handle in _names:  # else it was waited for before
        _wait(handle, call)
        del _names[handle]
    try:
        result: Tensor = _calls().synchronize(handle)
    except (PeerLost, TimedOut):
        raise
    except RuntimeError as error:
        raise failures.by_text(str(error)) from error
    return result


def _wait(handle: int, call: str) -> None:
    timeout_s = RuntimeSettings.from_environment().timeout_s
    deadline_s = time.monotonic() + timeout_s
    while not poll(handle):
        if time.monotonic() > deadline_s:
            raise TimedOut(
                f"byteprophet: waited {timeout_s:g} s for '{_names[handle]}': another rank may not "
                f"have called {call}(), which all ranks must call together (BYTEPROPHET_TIMEOUT_S "
                "sets the limit)"
            )
        time.sleep(_POLL_S)
