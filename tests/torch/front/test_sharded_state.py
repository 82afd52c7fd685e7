"""Sharded optimizer state, of which this rank has its shard."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from byteprophet.errors import UserError
from byteprophet.torch.front.sharded_state import refuse_other, refuse_rearranged
from byteprophet.torch.front.slots import Slot

from .test_front import Attach


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


@pytest.mark.parametrize(
    ("saver", "shards", "refused"),
    [
        (None, True, ""),  # as states were before they said it
        (None, False, ""),
        ({"rank": 1, "ranks": 2}, True, ""),
        ({"rank": 0, "ranks": 2}, True, "by rank 0 of 2, and this is rank 1 of 2"),
        ({"rank": 1, "ranks": 4}, True, "by rank 1 of 4, and this is rank 1 of 2"),
        ({"rank": 1, "ranks": 2}, False, "shards, and here every rank has the whole state"),
    ],
)
def test_shards_of_another_rank_are_refused(saver: Any, shards: bool, refused: str) -> None:
    synchroniser: Any = SimpleNamespace(rank=1, size=2, shards=shards)
    state = {} if saver is None else {"byteprophet_saver": saver}
    if not refused:
        refuse_other(state, synchroniser)
        return
    with pytest.raises(ValueError, match=refused):
        refuse_other(state, synchroniser)


def test_where_nothing_is_sharded_a_state_may_have_any_shapes(attach: Attach, network: Any) -> None:
    model = nn.Linear(4, 3)
    optimizer = attach(torch.optim.Adafactor(model.parameters()), network)
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    saved = copy.deepcopy(optimizer.sharded_state_dict())
    assert saved["state"][0]["row_var"].shape != model.weight.shape
    optimizer.load_sharded_state_dict(saved)
    assert torch.equal(optimizer.state[model.weight]["row_var"], saved["state"][0]["row_var"])
