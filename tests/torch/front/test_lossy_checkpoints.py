"""``torch.distributed.checkpoint`` keeps an optimizer's state, or is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

from .test_front import Attach


def trained(attach: Attach, network: Any, **options: Any) -> tuple[nn.Module, Any]:
    """A model and its optimizer after one step."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    ours = attach(plain, network, named=model.named_parameters(), **options)
    model(torch.ones(1, 3)).sum().backward()
    ours.step()
    return model, ours


@pytest.mark.parametrize(
    ("options", "lost"),
    [
        ({"staleness": {"0.weight": 1}}, "delayed averages"),
        ({"local_steps": 2}, "the steps of local SGD"),
    ],
)
def test_what_would_be_dropped_is_refused(
    options: dict[str, Any], lost: str, attach: Attach, network: Any
) -> None:
    model, ours = trained(attach, network, **options)
    said = f"saves an optimizer without {lost}: save optimizer.state_dict"
    with pytest.raises(RuntimeError, match=said):
        get_optimizer_state_dict(model, ours)
    state = ours.state_dict()
    assert {*state} > {"state", "param_groups"}
    other, plain = trained(attach, network)
    for full in (False, True):  # which reads the state of ours first
        ours.load_state_dict(state)
        loaded = get_optimizer_state_dict(other, plain)
        set_options = StateDictOptions(full_state_dict=full)
        set_optimizer_state_dict(model, ours, loaded, options=set_options)
        assert {*ours.state_dict()} == {"state", "param_groups"}
        for one, another in zip(model.parameters(), other.parameters(), strict=True):
            momentum = ours.state[one]["momentum_buffer"]
            assert torch.equal(momentum, plain.state[another]["momentum_buffer"])


def test_a_whole_state_is_saved_and_loaded(attach: Attach, network: Any) -> None:
    model, ours = trained(attach, network)
    other, theirs = trained(attach, network)
    assert {*ours.state_dict()} == {"state", "param_groups"}
    set_optimizer_state_dict(other, theirs, get_optimizer_state_dict(model, ours))
    for one, another in zip(model.parameters(), other.parameters(), strict=True):
        momentum = ours.state[one]["momentum_buffer"]
        assert momentum.any()
        assert torch.equal(momentum, theirs.state[another]["momentum_buffer"])
