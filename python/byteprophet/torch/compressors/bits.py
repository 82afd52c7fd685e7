"""Packs small whole numbers into bytes.

Eight numbers of b bits take b bytes: the first number has the lowest bits. The last eight are
filled up with zeros.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_TOGETHER = 8


def packed_bytes(count: int, bits: int) -> int:
    """The bytes that so many numbers take."""
    return -(-count // _TOGETHER) * bits


def pack(numbers: Tensor, bits: int) -> Tensor:
    """Pack ``numbers`` (n,) of uint8, each below 2 to the power of ``bits``, which is at most 8."""
    count = numbers.numel()
    rows = -(-count // _TOGETHER)
    padded = np.zeros(rows * _TOGETHER, np.uint8)
    padded[:count] = numbers.numpy()
    if bits == 1:
        return torch.from_numpy(np.packbits(padded, bitorder="little"))
    words = np.zeros(rows, np.dtype("<u8"))
    for place, column in enumerate(padded.reshape(rows, _TOGETHER).T):
        words |= column.astype(np.uint64) << np.uint64(place * bits)
    return torch.from_numpy(words.view(np.uint8).reshape(rows, 8)[:, :bits].copy()).flatten()


def unpack(packed: Tensor, count: int, bits: int) -> Tensor:
    """The ``count`` numbers in ``packed``, as uint8."""
    if bits == 1:
        return torch.from_numpy(np.unpackbits(packed.numpy(), count=count, bitorder="little"))
    rows = packed.numel() // bits
    held = np.zeros((rows, 8), np.uint8)
    held[:, :bits] = packed.numpy().reshape(rows, bits)
    words = held.view(np.dtype("<u8"))[:, 0]
    mask = np.uint64((1 << bits) - 1)
    numbers = np.empty((rows, _TOGETHER), np.uint8)
    for place in range(_TOGETHER):
        numbers[:, place] = words >> np.uint64(place * bits) & mask
    return torch.from_numpy(numbers.reshape(-1)[:count])
