"""Buffers of recomputed regions end as those of the plain model do."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from byteprophet.job.strategy import Region, Strategy
from byteprophet.torch.regions.install import install


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8))


def spectral() -> nn.Module:
    """Each forward takes a step of a power iteration, in place."""
    return nn.Sequential(spectral_norm(nn.Linear(8, 8)), nn.ReLU(), spectral_norm(nn.Linear(8, 8)))


class Counting(nn.Module):
    """Replaces its buffer, but not in its first pass, which runs twice."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.register_buffer("count", torch.zeros(()))
        self.passes = 0

    def forward(self, data: Tensor) -> Tensor:
        self.passes += 1
        if self.passes > 2:
            self.count = self.count + 1
        output: Tensor = self.inner(data)
        return output


def train(model: nn.Module) -> None:
    torch.manual_seed(1)
    for _ in range(3):
        model(torch.randn(16, 8)).square().mean().backward(retain_graph=True)


@pytest.mark.parametrize("make", [normalised, spectral])
def test_a_forward_that_runs_twice_changes_buffers_once(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = make()
    plain = copy.deepcopy(model)
    region = Region(tuple(name for name, _ in model.named_children()), recomputed=True)
    install(model, Strategy(regions=(region,)), "s.json")
    train(model)
    train(plain)
    for name, value in plain.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.equal(one.grad, other.grad)


def test_several_backward_passes_run_a_forward_again() -> None:
    torch.manual_seed(0)
    model = normalised()
    plain = copy.deepcopy(model)
    names = tuple(name for name, _ in model.named_children())
    install(model, Strategy(regions=(Region(names, recomputed=True),)), "s.json")
    data = torch.randn(16, 8)
    found = []
    for each in (model, plain):
        loss = each(data).square().mean()
        weights = [*each.parameters()]
        found.append([torch.autograd.grad(loss, weights, retain_graph=True) for _ in range(2)])
    for one, other in zip(itertools.chain(*found[0]), itertools.chain(*found[1]), strict=True):
        assert torch.equal(one, other)
    for name, value in plain.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name


def test_a_buffer_that_changes_late_changes_once_per_pass() -> None:
    model = nn.Sequential(Counting(), nn.Linear(8, 8))
    install(model, Strategy(regions=(Region(("0",), recomputed=True),)), "s.json")
    train(model)
    (count,) = model.buffers()
    assert count == 2


class Growing(nn.Module):
    """Doubles a buffer for the first time in its third pass, after it has used it."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, data: Tensor) -> Tensor:
        output = (self.inner(data) * self.scale.clone()).tanh()
        self.passes += 1
        if self.passes == 3:
            self.scale *= 2
        return output


def test_a_buffer_that_changes_late_is_as_before_in_the_second_run() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), Growing())
    plain = copy.deepcopy(model)
    install(model, Strategy(regions=(Region(("1",), recomputed=True),)), "s.json")
    train(model)
    train(plain)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.equal(one.grad, other.grad)
