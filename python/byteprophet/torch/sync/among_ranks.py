"""BytePS' basic calls in a job without servers: among the ranks of torch.distributed.

A script that was written for BytePS so runs without servers. BytePS knows tensors by name, and
ranks may push them in any order. This holds here, too: a call is a message of that name on the
exchange (``operations.py``), and not a collective of the process group.

Threads: the training thread makes the calls. The exchange's thread ends them, by setting an event.
"""

from __future__ import annotations

import atexit
import itertools
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor, distributed
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from byteprophet import _leaving
from byteprophet.job.owners import Owners
from byteprophet.runtime_settings import RuntimeSettings
from byteprophet.torch.sync import outstanding
from byteprophet.torch.sync.exchange import Exchange
from byteprophet.torch.sync.operations import Operations, Submission
from byteprophet.torch.sync.process_exchange import leave_process_exchange, process_exchange

_OPTIMIZER = -1  # optimizers count from 0

_handles = itertools.count()
_calls: dict[int, _Call] = {}
_operations: dict[str, tuple[Exchange, Operations]] = {}  # by device type


@dataclass
class _Call:
    """A call in flight. ``result`` is there once ``ended`` is set, if ``error`` is None.

    That is the average or the sum. Of integers, it is the sum, also if an average is wanted.
    """

    name: str
    result: Tensor
    average: bool
    ended: threading.Event
    error: BaseException | None = None


def join() -> None:
    """Join the default process group of torch.distributed, unless the script has joined it.

    An attempt of torchrun with one agent has keys of its own in the store that the agent keeps for
    all attempts: otherwise, backends find the addresses of the attempt before.
    """
    if distributed.is_initialized():
        return
    timeout_s = RuntimeSettings.from_environment().timeout_s
    backend = None if torch.cuda.is_available() else "gloo"
    timeout = timedelta(seconds=timeout_s)
    attempt = _attempt(os.environ)
    if attempt is None:
        distributed.init_process_group(backend, timeout=timeout)
    else:
        store, rank, size = next(rendezvous("env://", timeout=timeout))
        store = PrefixStore(f"attempt.{attempt}", store)
        distributed.init_process_group(
            backend, store=store, rank=rank, world_size=size, timeout=timeout
        )
    atexit.register(leave)
    _leaving.skip_shutdown(leave)


def _attempt(environment: Mapping[str, str]) -> str | None:
    """The attempt of torchrun whose store this process joins; None: the store is not shared.

    Agents of several hosts may count attempts differently, and theirs is None, too.
    """
    is_kept = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    alone = environment.get("GROUP_WORLD_SIZE") == "1"
    return environment.get("TORCHELASTIC_RESTART_COUNT") if is_kept and alone else None


def leave() -> None:
    """Leave the process group. Nothing may be in flight."""
    leave_process_exchange()
    _operations.clear()
    if distributed.is_initialized():
        distributed.destroy_process_group()


def size() -> int:
    """The number of ranks."""
    return distributed.get_world_size()


def rank() -> int:
    """The rank of this process."""
    return distributed.get_rank()


def local_size(environment: Mapping[str, str] = os.environ) -> int:
    """The number of ranks on this host, as torchrun sets it."""
    return int(environment.get("LOCAL_WORLD_SIZE", "1"))


def local_rank(environment: Mapping[str, str] = os.environ) -> int:
    """The number of this rank on its host, as torchrun sets it."""
    return int(environment.get("LOCAL_RANK", "0"))


def push_pull_async_inplace(
    tensor: Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
) -> int:
    """Begin to replace ``tensor`` by its sum or average over all ranks; ``synchronize`` waits.

    ``version`` and ``priority`` are BytePS' and have no effect. Raises ``ValueError`` if the tensor
    is not contiguous, or cannot be sent.
    """
    if not tensor.is_contiguous():
        raise ValueError("Tensor is required to be contiguous.")
    handle = next(_handles)
    call = _calls[handle] = _Call(name or f"{handle}", tensor, average, threading.Event())
    if size() == 1 or not tensor.numel():
        call.ended.set()
        return handle
    wire = torch.view_as_real(tensor) if tensor.is_complex() else tensor

    def done(error: BaseException | None) -> None:
        call.error = error
        call.ended.set()

    try:
        exchange, operations = _on(wire.device.type)
        outstanding.finish_updates(exchange, averages=True)
        # The brackets tell these spans from those of buckets, whose labels end with a number.
        averaged = average and wire.is_floating_point()  # a sum may be beyond the type's range
        operations.sum_message(
            f"push_pull ({call.name})", Submission(wire.detach(), done), averaged
        )
    except BaseException:
        del _calls[handle]
        raise
    return handle


def poll(handle: int) -> bool:
    """Whether ``synchronize`` would return at once."""
    return handle not in _calls or _calls[handle].ended.is_set()


def synchronize(handle: int) -> Tensor:
    """End a call that is over (``poll``), and return its tensor."""
    if handle not in _calls:
        raise ValueError(f"handle {handle}: there is no such call, or it was waited for before")
    call = _calls.pop(handle)
    if call.error is not None:
        raise call.error
    is_sum = not (call.result.is_floating_point() or call.result.is_complex())
    if call.average and is_sum:
        with torch.no_grad():
            call.result.div_(size(), rounding_mode="floor")
    return call.result


def _on(device_type: str) -> tuple[Exchange, Operations]:
    timeout_s = RuntimeSettings.from_environment().timeout_s
    exchange = process_exchange(device_type, timeout_s)
    known = _operations.get(device_type)
    if known is None or known[0] is not exchange:
        operations = Operations(exchange, _OPTIMIZER, Owners.equal(exchange.size))
        known = _operations[device_type] = exchange, operations
    return known
