"""Blocks of row numbers, in which ranks tell each other which rows they have touched.

``allreduce/rows.py`` describes blocks and their sizes. Here they are tensors of 32-bit integers.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from byteprophet.allreduce import rows

DENSE = -1
"""In place of the number of rows: the gradient is dense."""


def fill(block: Tensor, numbers: Tensor, table_rows: int) -> Tensor:
    """Write the block of a rank that has the rows ``numbers``, which ascend.

    Returns the numbers that do not fit, as 32-bit integers.
    """
    block[0] = len(numbers)
    words = len(block) - 1
    if words < rows.bitmap_words(table_rows):
        fitting = numbers[:words]
        block[1 : 1 + len(fitting)] = fitting
        return numbers[words:].to(torch.int32)
    bits = np.zeros(32 * words, dtype=np.bool_)
    bits[numbers.numpy()] = True
    packed = np.packbits(bits, bitorder="little").view(np.int32)
    block[1:] = torch.from_numpy(packed)
    return torch.empty(0, dtype=torch.int32)


def overflow(blocks: Tensor, table_rows: int) -> list[int]:
    """How many numbers of each rank do not fit into its block, one row of ``blocks``."""
    words = blocks.shape[1] - 1
    return [rows.overflow(count, words, table_rows) for count in blocks[:, 0].tolist()]


def numbers_in(block: Tensor, more: Tensor, table_rows: int) -> Tensor:
    """The row numbers in a block and in ``more``, which did not fit into it; they ascend."""
    words = len(block) - 1
    if words < rows.bitmap_words(table_rows):
        fitting = block[1 : 1 + min(words, int(block[0]))]
        return torch.cat((fitting, more)).to(torch.int64)
    packed = block[1:].numpy().view(np.uint8)
    bits = np.unpackbits(packed, count=table_rows, bitorder="little")
    return torch.from_numpy(np.flatnonzero(bits))
