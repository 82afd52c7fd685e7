"""Top-k and random-k: some elements travel as they are, and the others not at all."""

from __future__ import annotations

import torch
from torch import Tensor

from byteprophet.job.compression import RandomK, TopK, kept
from byteprophet.torch.compressors.draws import lot
from byteprophet.torch.compressors.steps import AllGather, AllReduce, Averaged, Steps, Turn


def top_k(compressor: TopK, turn: Turn) -> Steps:
    """All ranks' elements and their numbers are all-gathered, and summed in rank order.

    A form has the numbers, and behind them the values, as words of 32 bits.
    """
    values = turn.values
    count = kept(compressor.k, values.numel())
    numbers = values.abs().topk(count, sorted=False).indices
    forms = yield AllGather(torch.cat((numbers.to(torch.int32), values[numbers].view(torch.int32))))
    average = torch.zeros_like(values)
    for form in forms:
        theirs, chosen = form[:count].to(torch.int64), form[count:].view(torch.float32)
        average[theirs] += chosen
    average *= 1.0 / turn.ranks
    return Averaged(average, _without(values, numbers))


def random_k(compressor: RandomK, turn: Turn) -> Steps:
    """All ranks choose the same elements, so only values travel, and are all-reduced."""
    values = turn.values
    count = kept(compressor.k, values.numel())
    generator = lot(compressor.seed, turn.name, turn.step)
    numbers = torch.from_numpy(
        generator.choice(values.numel(), count, replace=False, shuffle=False)
    )
    chosen = yield AllReduce(values[numbers])
    average = torch.zeros_like(values)
    average[numbers] = chosen
    return Averaged(average, _without(values, numbers))


def _without(values: Tensor, numbers: Tensor) -> Tensor:
    """``values``, in place, with zeros for what was sent."""
    values[numbers] = 0.0
    return values
