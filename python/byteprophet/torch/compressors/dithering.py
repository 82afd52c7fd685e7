"""Dithering: each element is rounded at random to a level below or above it.

The chance is such that the expectation is the element. Levels are parts of the norm: of linear
ones, level j of k is j/k; of natural ones, it is 2 to the power of j - k. Level 0 is 0. Numbers
that travel are levels with a sign, plus k.
"""

from __future__ import annotations

import torch
from torch import Tensor

from byteprophet.job.compression import LINEAR, MAX, Dithering
from byteprophet.torch.compressors.draws import lot, uniform
from byteprophet.torch.compressors.scaled import exchange
from byteprophet.torch.compressors.steps import Averaged, Steps, Turn


def dithering(compressor: Dithering, turn: Turn) -> Steps:
    """All ranks' levels and norms are all-gathered."""
    values, k = turn.values, compressor.k
    norm = values.abs().max() if compressor.normalize == MAX else values.norm()
    if torch.isfinite(norm) and norm > 0:
        parts = (values.abs() / norm).clamp_(max=1.0)
        generator = lot(compressor.seed, turn.name, turn.step, turn.rank)
        draws = uniform(generator, values.numel())
        levels = (_linear if compressor.partition == LINEAR else _natural)(parts, k, draws)
        levels *= torch.where(values < 0, -1, 1)
    else:  # what is no number makes all elements so, by the norm
        levels = torch.zeros(values.shape, dtype=torch.int64)
    numbers = (levels + k).to(torch.uint8)
    found: Averaged = yield from exchange(
        turn, numbers, norm.view(1), _stands_for(compressor), compressor.bits
    )
    return found


def _linear(parts: Tensor, k: int, draws: Tensor) -> Tensor:
    """The levels of ``parts``, which are from 0 to 1. ``draws``: from 0 to 1, without 1."""
    exact = parts * k
    below = exact.floor()
    return (below + (draws < exact - below)).clamp_(max=k).to(torch.int64)


def _natural(parts: Tensor, k: int, draws: Tensor) -> Tensor:
    """As ``_linear``."""
    mantissa, exponent = torch.frexp(parts)  # from 1/2 to 1, without 1
    below = exponent.to(torch.int64) - 1 + k
    between_levels = below + (draws < 2 * mantissa - 1)
    lowest = (draws < parts * 2.0 ** (k - 1)).to(torch.int64)
    return torch.where(parts >= 2.0 ** (1 - k), between_levels, lowest)


def _stands_for(compressor: Dithering) -> Tensor:
    """The part of the norm for which each number stands, shape (2 k + 1,)."""
    k = compressor.k
    if compressor.partition == LINEAR:
        return torch.arange(-k, k + 1, dtype=torch.float32) / k
    above = [2.0 ** (level - k) for level in range(1, k + 1)]
    return torch.tensor([*(-part for part in reversed(above)), 0.0, *above])
