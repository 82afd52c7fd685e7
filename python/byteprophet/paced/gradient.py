"""The formulas of the gradients and initial parameters of a paced job, in torch.

A paced job computes no real gradients, but its parameters can be checked bit for bit, because every
layer returns a gradient given by a formula. With ``crc = zlib.crc32(NAME as UTF-8)`` (unsigned),
element ``j`` of the tensor NAME on rank ``r`` in iteration ``t`` (both from 0) is

    pattern(NAME)[j]        = ((crc + j) mod 255 - 127) / 128
    coefficient(NAME, r, t) = (1 + (crc + 3 r + 5 t) mod 7) / 8
    gradient[j]             = pattern(NAME)[j] * coefficient(NAME, r, t)

and training is

    parameter[j] at the start = pattern(NAME)[j] / 16
    per iteration             : parameter -= (1/16) * (sum of the gradients over the ranks / ranks)

all in float32. The values of neighbouring iterations, ranks and elements differ, and so do those of
most tensors, so that a stale, lost, doubled or misplaced piece changes the result.

The sum is exact in any order of its addends. A gradient is n / 2^10 with an integer
|n| <= 127 * 7 = 889, so a sum over W ranks has |n| <= 889 W, which float32 represents exactly up to
W = 18,000. The division by W is exact if W is a power of two. For other W, it is rounded once, and
a runtime that divides before summing gets different last bits. The learning rate is a power of two,
so lr * mean is exact again, and fused and separate multiply-subtract give the same result. With
W = 2^k, the parameters stay exact while |parameter| < 2^(10 - k), that is, for at least 1,000
updates if W <= 16. After that, and for other W, each update rounds once, in the same way in all
runtimes.
"""

from __future__ import annotations

import functools
import zlib

import torch

PATTERN_PERIOD = 255
LEARNING_RATE = 1 / 16
INITIAL_SCALE = 1 / 16


class Patterns:
    """The patterns of all tensors, as views into one block of memory.

    Patterns are periodic, so the patterns of different names are the same numbers with different
    offsets. Together they need the memory of the largest tensor. They are read-only and may be used
    from several threads.
    """

    def __init__(self, largest_elements: int) -> None:
        numbers = torch.arange(PATTERN_PERIOD, dtype=torch.float32).sub_(127).div_(128)
        repeats = -(-largest_elements // PATTERN_PERIOD) + 1
        self._numbers = numbers.repeat(repeats)

    def pattern(self, name: str, elements: int) -> torch.Tensor:
        """``pattern(name)``, shape (elements,), float32. Do not write to it."""
        start = _crc(name) % PATTERN_PERIOD
        return self._numbers[start : start + elements]

    def initial(self, name: str, elements: int) -> torch.Tensor:
        """The initial values of the parameter, a new tensor of shape (elements,), float32."""
        return torch.mul(self.pattern(name, elements), INITIAL_SCALE)


def coefficient(name: str, rank: int, iteration: int) -> float:
    """``coefficient(name, rank, iteration)``, one of 1/8, 2/8, ... 7/8."""
    return (1 + (_crc(name) + 3 * rank + 5 * iteration) % 7) / 8


@functools.cache  # once per name, not once per gradient
def _crc(name: str) -> int:
    return zlib.crc32(name.encode())
