"""A form of small whole numbers with one scale: how it travels and is averaged.

A form has the packed numbers (``bits.py``), and behind them the scale, a number of float32. Each
element is a value that its number stands for, times the scale. All ranks add the elements of all
forms in rank order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from byteprophet.torch.compressors.bits import pack, packed_bytes, unpack
from byteprophet.torch.compressors.steps import AllGather, Averaged, Steps, Turn


def exchange(turn: Turn, numbers: Tensor, scale: Tensor, stands_for: Tensor, bits: int) -> Steps:
    """Exchange ``numbers`` (n,) of uint8, each of so many ``bits``.

    ``scale``: one number, of shape (1,). ``stands_for``: the value of each number, of float32.
    """
    own = torch.cat((pack(numbers, bits), scale.view(torch.uint8)))
    forms = yield AllGather(own)
    count = numbers.numel()
    average = torch.zeros_like(turn.values)
    for form in forms:
        average += _elements(form, count, bits, stands_for)
    average *= 1.0 / turn.ranks
    return Averaged(average, turn.values - _elements(own, count, bits, stands_for))


def _elements(form: Tensor, count: int, bits: int, stands_for: Tensor) -> Tensor:
    end = packed_bytes(count, bits)
    scale = form[end:].clone().view(torch.float32)
    return stands_for[unpack(form[:end], count, bits).to(torch.int64)] * scale
