"""The stated gradients and initial parameters of a paced job, in torch.

A paced job computes nothing, yet its parameters can be checked bit for bit, because what every
layer returns as its gradient is a formula. With ``crc = zlib.crc32(NAME as UTF-8)`` (unsigned),
element ``j`` of the tensor NAME on rank ``r`` in iteration ``t`` (both from 0) is

    pattern(NAME)[j]        = ((crc + j) mod 255 - 127) / 128
    coefficient(NAME, r, t) = (1 + (crc + 3 r + 5 t) mod 7) / 8
    gradient[j]             = pattern(NAME)[j] * coefficient(NAME, r, t)

and training is

    parameter[j] at the start = pattern(NAME)[j] / 16
    per iteration             : parameter -= (1/16) * (sum of the gradients over the ranks / ranks)

all in float32. A different iteration, rank, tensor or place in a tensor gives a different value,
so that a stale, lost, doubled or misplaced piece shows.

Why the sum is exact whatever the order of its addends: a gradient is n / 2^10 with an integer
|n| <= 127 * 7 = 889, so a sum over W ranks has |n| <= 889 W, which float32 holds exactly up to
W = 18,000. Dividing by W is exact where W is a power of two and correctly rounded once elsewhere
(whoever divides before summing gets other last bits there). The learning rate is a power of two,
so lr * mean is exact again and fused and separate multiply-subtract agree. With W = 2^k the
parameters themselves stay exact while |parameter| < 2^(10 - k), for 1,000 updates and more up to
W = 16; beyond, and for other W, each update rounds once, the same way everywhere.
"""

from __future__ import annotations

import zlib

import torch

PATTERN_PERIOD = 255
LEARNING_RATE = 1 / 16
INITIAL_SCALE = 1 / 16


class Patterns:
    """The patterns of all tensors, as views into one stretch of memory.

    A pattern is periodic, so those of different names are the same numbers from different places
    on; together they take the memory of the largest tensor. Read-only, and may be used from
    several threads.
    """

    def __init__(self, largest_elements: int) -> None:
        numbers = torch.arange(PATTERN_PERIOD, dtype=torch.float32).sub_(127).div_(128)
        repeats = -(-largest_elements // PATTERN_PERIOD) + 1
        self._numbers = numbers.repeat(repeats)

    def pattern(self, name: str, elements: int) -> torch.Tensor:
        """``pattern(name)``, shape (elements,), float32; not to be written to."""
        start = _crc(name) % PATTERN_PERIOD
        return self._numbers[start : start + elements]

    def initial(self, name: str, elements: int) -> torch.Tensor:
        """The parameter at the start, a new tensor of shape (elements,), float32."""
        return torch.mul(self.pattern(name, elements), INITIAL_SCALE)


def coefficient(name: str, rank: int, iteration: int) -> float:
    """``coefficient(name, rank, iteration)``: one of 1/8, 2/8, ... 7/8."""
    return (1 + (_crc(name) + 3 * rank + 5 * iteration) % 7) / 8


def _crc(name: str) -> int:
    return zlib.crc32(name.encode())
