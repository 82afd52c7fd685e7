"""Modules that recomputing would change are found, and said why."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from byteprophet.job.strategy import BF16, EAGER, RECOMPUTED
from byteprophet.torch.regions.calls import ModuleCall, versions_of
from byteprophet.torch.regions.cost import measure_region
from byteprophet.torch.regions.twice import why_not_recomputed

from .models import Block


class Scaled(Block):
    """Scaled by Python's random numbers."""

    def forward(self, data: Tensor, scale: Tensor | None = None) -> Tensor:
        return random.uniform(0.5, 1.5) * super().forward(data)


class Warming(Block):
    """Counts its passes."""

    passes = 0

    def forward(self, data: Tensor, scale: Tensor | None = None) -> Tensor:
        self.passes += 1
        return min(1.0, self.passes / 20) * super().forward(data)


class Keeping(Block):
    """Keeps a result, which torch cannot copy."""

    def forward(self, data: Tensor, scale: Tensor | None = None) -> Tensor:
        self.kept = super().forward(data)
        return self.kept


class Private(Block):
    """Has a generator of its own, which nobody sees."""

    def forward(self, data: Tensor, scale: Tensor | None = None) -> Tensor:
        noise = torch.rand(data.shape, generator=GENERATOR)
        return super().forward(data * noise)


GENERATOR = torch.Generator()
CHANGED = "its input is changed in place, and is another when it runs again"


def call_of(module: nn.Module) -> ModuleCall:
    """A call of ``module`` after one of its passes."""
    data = torch.randn(4, 8, requires_grad=True)
    given = data.clone()
    versions = versions_of(given)
    module(given)
    return ModuleCall("0", module, (given,), {}, versions)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (Block(8), ""),
        (nn.Sequential(nn.BatchNorm1d(8), nn.Dropout(), nn.ReLU(inplace=True)), ""),
        (Scaled(8), "it draws from the generators of Python or NumPy, and would do so twice"),
        (nn.Sequential(Warming(8)), "it changes its attribute '0.passes', and would do so twice"),
        (Keeping(8), "it changes its attribute 'kept', and would do so twice"),
        (Private(8), "its results or gradients differ if it runs twice"),
        (nn.LeakyReLU(0.2, inplace=True), CHANGED),
    ],
)
def test_what_may_run_twice(module: nn.Module, reason: str) -> None:
    call = call_of(module)
    assert why_not_recomputed([call]) == reason
    costs, refused = measure_region([call], (EAGER, RECOMPUTED), reason)
    assert set(costs) == ({EAGER} if reason else {EAGER, RECOMPUTED})
    assert refused == ({RECOMPUTED: reason} if reason else {})


def test_a_module_that_raises_is_refused_with_its_error() -> None:
    call = ModuleCall("0", nn.Linear(8, 8), (torch.ones(2, 3),), {}, (0,))
    reason = why_not_recomputed([call])
    assert reason.startswith("it cannot run alone: RuntimeError: mat1 and mat2 shapes")
    assert measure_region([call], (EAGER,)) == ({}, {EAGER: reason})


class Told:
    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


@dataclass
class Output:
    logits: Tensor


class Wrapping(Block):
    """Takes and returns an object with a tensor."""

    def __init__(self, kind: Callable[[Tensor], Any]) -> None:
        super().__init__(8)
        self.kind = kind

    def forward(self, data: Any, scale: Tensor | None = None) -> Any:
        return self.kind(super().forward(data.logits, scale))


@pytest.mark.parametrize(
    "module",
    [
        Wrapping(Output),
        nn.utils.weight_norm(nn.Linear(8, 8)),
        nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)),
        nn.utils.spectral_norm(nn.Linear(8, 8)),
    ],
)
def test_all_parameters_get_gradients_when_a_module_runs_alone(module: nn.Module) -> None:
    """Also where a hook makes the weight, and where inputs and outputs are dataclasses."""
    given = torch.randn(4, 8, requires_grad=True).clone()
    inputs: Any = Output(given) if isinstance(module, Wrapping) else given
    output = module(inputs)
    call = ModuleCall("0", module, (inputs,), {}, versions_of(inputs), output)
    assert not why_not_recomputed([call])
    modes = (EAGER, RECOMPUTED, BF16)
    costs, refused = measure_region([call], modes)
    assert not refused
    assert list(costs) == list(modes)
    for cost in costs.values():
        assert len(cost.ready_ns) == len(list(module.parameters()))
        assert min(cost.ready_ns) > 0  # 0: it got none


def test_a_module_whose_gradients_cannot_be_followed_is_refused() -> None:
    module = Wrapping(Told)
    inputs = Output(torch.ones(2, 8))
    call = ModuleCall("", module, (inputs,), {}, (0,), module(inputs))
    costs, refused = measure_region([call], (EAGER, BF16))
    assert not costs
    assert set(refused) == {EAGER, BF16}
    assert refused[EAGER].startswith("it returns a Told, in which gradients are not followed")


def test_only_the_input_of_the_first_module_must_stay() -> None:
    first = call_of(nn.Linear(8, 8))
    activation = call_of(nn.LeakyReLU(0.2, inplace=True))
    assert not why_not_recomputed([first, activation])
    assert why_not_recomputed([activation, first]) == CHANGED
