"""What casting and keeping gradients takes on this host, per byte, measured once per process.

One thread works, as in a rank whose cores are busy with other ranks. It goes through more memory
than most caches hold, tensor by tensor, as a job does with its gradients. The lower quartile of
many rounds leaves out what other processes did meanwhile. torch is imported only if a pass asks.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import numpy as np

from byteprophet.job.strategy import BF16
from byteprophet.order_statistics import quantile

_ELEMENTS, _TENSORS = 1 << 18, 64
_ROUNDS = 15
_QUARTILE = 0.25


@functools.cache
def cast_ns_per_byte(reduce_dtype: str) -> float:
    """Casting float32 to ``reduce_dtype``, or back: the mean of both."""
    import torch

    gradients = torch.ones(_TENSORS, _ELEMENTS)
    small = torch.bfloat16 if reduce_dtype == BF16 else torch.float16

    def both() -> None:
        for gradient in gradients:
            gradient.copy_(gradient.to(small))

    return _lowest_ns(both) / 2 / gradients.nbytes


@functools.cache
def keep_ns_per_byte() -> float:
    """Adding a gradient of float32 to another."""
    import torch

    kept, gradients = torch.ones(2, _TENSORS, _ELEMENTS)

    def add() -> None:
        for one, other in zip(kept, gradients, strict=True):
            one.add_(other)

    return _lowest_ns(add) / int(gradients.nbytes)


def _lowest_ns(work: Callable[[], object]) -> float:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        times_ns = []
        for _ in range(_ROUNDS):
            begin_ns = time.perf_counter_ns()
            work()
            times_ns.append(time.perf_counter_ns() - begin_ns)
    finally:
        torch.set_num_threads(threads)
    return quantile(np.array(times_ns), _QUARTILE)
