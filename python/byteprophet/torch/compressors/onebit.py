"""One-bit: the sign of each element, times the mean of all magnitudes. The sign of 0 is plus."""

from __future__ import annotations

import torch

from byteprophet.torch.compressors.scaled import exchange
from byteprophet.torch.compressors.steps import Averaged, Steps, Turn

_STANDS_FOR = torch.tensor((1.0, -1.0))


def one_bit(turn: Turn) -> Steps:
    """All ranks' signs and means are all-gathered."""
    values = turn.values
    negative = (values < 0).to(torch.uint8)
    scale = values.abs().mean().view(1)
    found: Averaged = yield from exchange(turn, negative, scale, _STANDS_FOR, bits=1)
    return found
