"""With BYTEPROPHET_PROBE=1, measures the network before the job, through BytePS itself.

It does so again when workers resume, because one that has just joined does it, too.

All ranks push and pull a few test tensors for about a quarter of a second. A small tensor sent
alone shows the delay. Many tensors sent at once show the bandwidth and the cost of a message. All
of them pass through the policy, so a policy that learns from acknowledgements starts with an
estimate. If the network is monitored, the samples of the probe are kept.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping

import torch
from byteps.torch import ops
from torch import Tensor

from byteprophet.errors import UserError, one_line
from byteprophet.runtime_settings import flag
from byteprophet.session import monitoring

_SECONDS = 0.25
_MOST_ROUNDS = 32
_SIZES_BYTES = (4 << 10, 64 << 10, 4 << 20)
_TOGETHER = 8  # tensors of each size but the largest


def wanted(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether to probe. Exits with status 2 if the variable has an invalid value."""
    try:
        return flag(environment, monitoring.PROBE_VARIABLE)
    except UserError as error:
        print(f"byteprophet: error: {one_line(str(error))}", file=sys.stderr)
        raise SystemExit(2) from None


def run() -> None:
    """Run the probe. Every rank must call this at the same place.

    In a job of one rank, it only declares its tensors, because another rank may join later.
    """
    tensors = {
        f"byteprophet.probe.{size_bytes}.{number}": torch.zeros(size_bytes // 4)
        for size_bytes in _SIZES_BYTES
        for number in range(_TOGETHER if size_bytes < _SIZES_BYTES[-1] else 1)
    }
    for name in tensors:
        ops.declare(name)
    if int(ops.size()) == 1:
        return
    clock_name, clock = next(iter(tensors.items()))
    _push_pull(tensors)  # the first push of a key is a barrier, so it is not timed
    begun_s = time.monotonic()
    for _ in range(_MOST_ROUNDS):
        _push_pull(tensors)
        # Average the elapsed time over all ranks, so that all stop after the same round.
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
