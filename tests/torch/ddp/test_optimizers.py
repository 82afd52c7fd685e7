"""Finding optimizers, and telling which ones cannot get a front."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer

from byteprophet.torch.ddp import fitness, optimizers
from byteprophet.torch.ddp.optimizers import optimizers_of


class Wrapper(Optimizer):
    """Holds another optimizer and shares its groups, as many do."""

    def __init__(self, inner: Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner = inner

    def step(self, closure: Any = None) -> Any:
        return self.inner.step()


class Standing(Optimizer):
    """Stands for another one, and has nothing of its own."""

    def __init__(self, inner: Optimizer) -> None:
        self.inner = inner

    def step(self, closure: Any = None) -> Any:
        return self.inner.step()


def test_optimizers_are_found_in_the_order_of_their_parameters() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    later, other = Adam(net[1].parameters()), SGD(nn.Linear(2, 2).parameters(), lr=1.0)
    first = SGD(net[0].parameters(), lr=1.0)
    found = optimizers_of([id(parameter) for parameter in net.parameters()])
    assert found.own == (first, later)
    assert other not in found.own


def test_a_wrapper_is_told_from_what_it_wraps() -> None:
    net = nn.Linear(2, 2)
    inner = SGD(net.parameters(), lr=1.0)
    wrapper, standing = Wrapper(inner), Standing(inner)
    found = optimizers_of([id(parameter) for parameter in net.parameters()])
    assert (found.own, found.wrappers) == ((inner,), (wrapper,))
    assert standing.inner is inner


def test_what_is_added_of_watched_parameters_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Optimizer, "add_param_group", Optimizer.add_param_group)  # put back later
    watched = nn.Linear(2, 2)
    known = {id(parameter) for parameter in watched.parameters()}
    monkeypatch.setattr(optimizers, "note_all", optimizers.note_all.__wrapped__)
    monkeypatch.setattr(optimizers, "_watches", optimizers._watches)
    optimizers.watch_additions(lambda parameter: id(parameter) in known)
    before = optimizers.additions()
    made = SGD(nn.Linear(2, 2).parameters(), lr=1.0)
    assert optimizers.additions() == before
    made.add_param_group({"params": [watched.bias]})
    assert optimizers.additions() == before + 1
    assert [group["lr"] for group in made.param_groups] == [1.0, 1.0]
    SGD(watched.parameters(), lr=1.0)
    assert optimizers.additions() == before + 2


def test_frozen_optimizers_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Optimizer, "add_param_group", Optimizer.add_param_group)  # put back later
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    before = SGD(net[0].parameters(), lr=1.0)
    optimizers.note_all.__wrapped__()
    after = SGD(net[1].parameters(), lr=1.0)
    gc.freeze()
    try:
        found = optimizers_of([id(parameter) for parameter in net.parameters()])
    finally:
        gc.unfreeze()
    assert found.own == (before, after)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (torch.optim.SGD, ""),
        (torch.optim.Adafactor, ""),
        (torch.optim.LBFGS, "LBFGS needs all gradients at once"),
    ],
)
def test_optimizers_that_cannot_get_a_front(kind: Any, reason: str) -> None:
    assert fitness.why_optimizer(kind(nn.Linear(2, 2).parameters(), lr=0.1)) == reason
