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

from .test_front import Attach, assert_equal

LOSSY = [
    ({"staleness": {"0.weight": 1}}, "delayed averages"),
    ({"local_steps": 2}, "the steps of local SGD"),
]


def made(
    attach: Attach, network: Any, *, momentum: float = 0.9, **options: Any
) -> tuple[nn.Module, Any]:
    """A model and its optimizer. All have the same parameters."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    return model, attach(plain, network, named=model.named_parameters(), **options)


def train(model: nn.Module, optimizer: Any, batch: float = 1.0) -> None:
    """One step, whose gradients are cleared afterwards."""
    model(torch.full((1, 3), batch)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def trained(attach: Attach, network: Any, **options: Any) -> tuple[nn.Module, Any]:
    """A model and its optimizer after one step."""
    model, ours = made(attach, network, **options)
    train(model, ours)
    return model, ours


def assert_equal_momentum(model: nn.Module, ours: Any, other: nn.Module, theirs: Any) -> None:
    for one, another in zip(model.parameters(), other.parameters(), strict=True):
        momentum = ours.state[one]["momentum_buffer"]
        assert momentum.any()
        assert torch.equal(momentum, theirs.state[another]["momentum_buffer"])


@pytest.mark.parametrize(("options", "lost"), LOSSY)
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
        assert_equal_momentum(model, ours, other, plain)


@pytest.mark.parametrize(("options", "lost"), LOSSY)
def test_what_is_refused_has_made_no_step(
    options: dict[str, Any], lost: str, attach: Attach, network: Any
) -> None:
    """torch calls step() for an optimizer without state, as SGD is without momentum."""
    model, ours = made(attach, network, momentum=0.0, **options)
    before = ours.state_dict(), len(network.submitted)
    with pytest.raises(RuntimeError, match=lost):
        get_optimizer_state_dict(model, ours)
    assert (ours.state_dict(), len(network.submitted)) == before


def test_saving_is_none_of_the_accumulated_steps(attach: Attach, network: Any) -> None:
    jobs = [made(attach, network, momentum=0.0, accumulation=3) for _ in range(2)]
    for step in range(6):
        for model, ours in jobs:
            train(model, ours, batch=1.0 + step)
        saved = get_optimizer_state_dict(*jobs[0])
        assert {each["lr"] for each in saved["param_groups"]} == {0.1}
    for _, ours in jobs:
        ours.finish()
    assert_equal(jobs[0][0], jobs[1][0])


@pytest.mark.parametrize("full", [False, True])
def test_loading_is_none_of_the_accumulated_steps(full: bool, attach: Attach, network: Any) -> None:
    other, theirs = trained(attach, network)
    model, ours = made(attach, network, accumulation=3)
    loaded = get_optimizer_state_dict(other, theirs)
    set_optimizer_state_dict(model, ours, loaded, options=StateDictOptions(full_state_dict=full))
    assert_equal_momentum(model, ours, other, theirs)
    train(model, ours)
    with pytest.raises(RuntimeError, match=r"load_state_dict\(\) was called after 1 of 3 accumul"):
        set_optimizer_state_dict(model, ours, loaded)


def test_a_whole_state_is_saved_and_loaded(attach: Attach, network: Any) -> None:
    model, ours = trained(attach, network)
    other, theirs = trained(attach, network)
    assert {*ours.state_dict()} == {"state", "param_groups"}
    set_optimizer_state_dict(other, theirs, get_optimizer_state_dict(model, ours))
    assert_equal_momentum(model, ours, other, theirs)
