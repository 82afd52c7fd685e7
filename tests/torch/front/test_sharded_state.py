"""Sharded optimizer state, of which this rank has its shard."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from byteprophet.errors import UserError
from byteprophet.torch.front.sharded_state import refuse_rearranged
from byteprophet.torch.front.slots import Slot


def test_another_memory_format_is_refused_once_there_is_state() -> None:
    model = nn.Conv2d(2, 3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    slot = Slot("weight", model.weight, 0, 1)
    gradients: Any = SimpleNamespace(slots={0: slot}, shard=lambda _: slice(0, 4))
    refuse_rearranged(optimizer, gradients)
    model.to(memory_format=torch.channels_last)
    refuse_rearranged(optimizer, gradients)  # there is no state yet
    optimizer.state[model.weight]["momentum_buffer"] = torch.zeros(4)
    model.to(memory_format=torch.contiguous_format)
    for _ in range(2):
        with pytest.raises(UserError, match="'weight' has another memory format than in the step"):
            refuse_rearranged(optimizer, gradients)
    model.to(memory_format=torch.channels_last)
    refuse_rearranged(optimizer, gradients)
