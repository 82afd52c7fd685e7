"""Every optimizer's update, parameter by parameter, is the class's own, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from byteprophet.torch.front.view_step import (
    FrozenStep,
    Update,
    is_separable,
    needs_closure,
    unhooked_step,
)

OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-2}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-4}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.5, "maximize": True}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "fused": True}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "foreach": True}),
    ("Adam", {"lr": 1e-2}),
    ("Adam", {"lr": 1e-2, "amsgrad": True, "weight_decay": 1e-2}),
    ("Adam", {"lr": torch.tensor(1e-2)}),
    ("Adam", {"lr": 1e-2, "fused": True}),
    ("AdamW", {"lr": 1e-2}),
    ("RMSprop", {"lr": 1e-2, "momentum": 0.9, "centered": True}),
    ("Adagrad", {"lr": 1e-2, "lr_decay": 1e-3}),
    ("Adadelta", {"lr": 1.0}),
    ("NAdam", {"lr": 1e-2}),
    ("RAdam", {"lr": 1e-2}),
    ("Adamax", {"lr": 1e-2}),
    ("ASGD", {"lr": 1e-2, "t0": 2}),
    ("Rprop", {"lr": 1e-2}),
    ("Adafactor", {"lr": 1e-2}),
]


def make(name: str, options: dict[str, Any]) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(70, 33), nn.Tanh(), nn.Linear(33, 5), nn.LayerNorm(5))
    first, *rest = model.parameters()
    # A scheduler's way of changing a tensor learning rate is in place, so each job needs its own.
    own = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in options.items()}
    groups = [{"params": [first], "lr": own["lr"]}, {"params": rest}]
    return model, getattr(torch.optim, name)(groups, **own)


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    else:
        assert one == other


@pytest.mark.parametrize(("name", "options"), OPTIMIZERS, ids=lambda value: str(value))
def test_view_step_equals_the_normal_step(name: str, options: dict[str, Any]) -> None:
    model, optimizer = make(name, options)
    plain_model, plain = make(name, options)
    for iteration in range(5):
        for parameter, plain_parameter in zip(
            model.parameters(), plain_model.parameters(), strict=True
        ):
            generator = torch.Generator().manual_seed(100 * iteration + parameter.numel())
            plain_parameter.grad = torch.randn(parameter.shape, generator=generator)
            parameter.grad = None
        plan = FrozenStep.of(optimizer, type(optimizer))
        # What happens after step() was called must not matter.
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * 0.5
        for number, group in reversed(list(enumerate(optimizer.param_groups))):
            updates: list[Update] = []
            for parameter in reversed(group["params"]):
                generator = torch.Generator().manual_seed(100 * iteration + parameter.numel())
                updates.append((parameter, torch.randn(parameter.shape, generator=generator), None))
            for made_at_once in [updates] if iteration % 2 else [[each] for each in updates]:
                plan.apply(number, made_at_once)
        plain.step()
        for group in plain.param_groups:
            group["lr"] = group["lr"] * 0.5
    for parameter, plain_parameter in zip(
        model.parameters(), plain_model.parameters(), strict=True
    ):
        assert torch.equal(parameter, plain_parameter)
    mine, its = optimizer.state_dict(), plain.state_dict()
    mine["state"] = dict(sorted(mine["state"].items()))
    assert_same(mine, its)


def test_step_hooks_are_not_run_for_every_parameter() -> None:
    _, optimizer = make("SGD", {"lr": 0.1})
    calls: list[int] = []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    plan = FrozenStep.of(optimizer, type(optimizer))
    parameter = optimizer.param_groups[0]["params"][0]
    plan.apply(0, [(parameter, torch.ones_like(parameter), None)])
    unhooked_step(type(optimizer))(optimizer)
    assert calls == []


def test_in_place_update_is_seen_by_autograd() -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    loss = (weight * weight).sum()
    FrozenStep.of(optimizer, torch.optim.SGD).apply(0, [(weight, torch.ones(3), None)])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_which_optimizers_are_separable() -> None:
    class Coupled(torch.optim.SGD):
        pass

    parameter = nn.Parameter(torch.ones(1))
    assert is_separable(torch.optim.Adam([parameter]), torch.optim.Adam)
    assert not is_separable(Coupled([parameter], lr=0.1), Coupled)
    assert needs_closure(torch.optim.LBFGS)
    assert not needs_closure(torch.optim.SGD)


class Counting(torch.optim.SGD):
    """Counts its steps in its groups, as apex' FusedAdam does."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["steps"] = group.get("steps", 0) + 1
        super().step(closure)


def test_a_class_that_changes_its_groups_is_refused() -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = Counting([weight], lr=0.1)
    with pytest.raises(RuntimeError, match=r"Counting changes 'steps' .* with separable=False"):
        FrozenStep.of(optimizer, Counting).apply(0, [(weight, torch.ones(3), None)])
