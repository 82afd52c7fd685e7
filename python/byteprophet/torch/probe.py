"""BYTEPROPHET_PROBE=1: measures the network before the job, by what the job itself will do.

All ranks push and pull a few tensors of their own through BytePS, for about a quarter of a second:
small ones one at a time, which show the delay, and many at once, which show bandwidth and the cost
of a message. They go through the policy, so one that learns from acknowledgements starts with an
estimate; where the network is monitored its samples of the probe are kept.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping

import torch
from byteps.torch import ops
from torch import Tensor

from byteprophet.errors import UserError
from byteprophet.network import monitoring
from byteprophet.runtime_settings import flag

_SECONDS = 0.25
_MOST_ROUNDS = 32
_SIZES_BYTES = (4 << 10, 64 << 10, 4 << 20)
_TOGETHER = 8  # tensors of a size


def wanted(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether to probe. Exits with status 2 for a wrong variable."""
    try:
        return flag(environment, monitoring.PROBE_VARIABLE)
    except UserError as error:
        print(f"byteprophet: error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def run() -> None:
    """Probe; every rank of the job calls it at the same place. A job of one rank sends nothing."""
    if int(ops.size()) == 1:
        return
    tensors = {
        f"byteprophet.probe.{size_bytes}.{number}": torch.zeros(size_bytes // 4)
        for size_bytes in _SIZES_BYTES
        for number in range(_TOGETHER if size_bytes < _SIZES_BYTES[-1] else 1)
    }
    for name in tensors:
        ops.declare(name)
    clock_name, clock = next(iter(tensors.items()))
    _push_pull(tensors)  # a key's first push is a barrier
    begun_s = time.monotonic()
    for _ in range(_MOST_ROUNDS):
        _push_pull(tensors)
        # The mean of all ranks' times, so that all stop after the same round.
        clock[0] = time.monotonic() - begun_s
        _push_pull({clock_name: clock})
        if clock[0] >= _SECONDS:
            break
    monitor = monitoring.process_monitor()
    if monitor is not None:
        monitor.probe_ended(time.monotonic_ns())


def _push_pull(tensors: Mapping[str, Tensor]) -> None:
    handles = [
        ops.push_pull_async_inplace(tensor, average=True, name=name)
        for name, tensor in tensors.items()
    ]
    for handle in handles:
        ops.synchronize(handle)
