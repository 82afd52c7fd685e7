"""Gradients that share memory: autograd's get their own, a script's stay where they are.

The network keeps rubbish in a tensor while it travels, so another one in its memory would be wrong.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

Attach = Callable[..., Any]
SHAPE = (3, 6)


class Summed(nn.Module):
    """Autograd makes the gradients of ``parts`` views of one tensor, unless they are ``scaled``.

    It changes that tensor in place before if its sum is used three ``times``.
    """

    def __init__(self, times: int, scaled: bool = False) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.parts = nn.ParameterList([torch.randn(SHAPE) for _ in range(8)])
        self.times = times
        self.scaled = scaled

    def forward(self, x: Tensor) -> Tensor:
        total = torch.stack([part * 1.0 if self.scaled else part for part in self.parts]).sum(0)
        outputs = [torch.sin(use * x @ total.t()) for use in range(1, self.times + 1)]
        return torch.stack(outputs).square().mean()


def batch(number: int) -> Tensor:
    return torch.randn(5, SHAPE[1], generator=torch.Generator().manual_seed(number))


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def assert_equal(model: nn.Module, plain: nn.Module) -> None:
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("times", [1, 3])
def test_autograd_shares_memory(network: Any, attach: Attach, times: int, passes: int) -> None:
    model, plain_model = Summed(times), Summed(times, scaled=True)
    ours, plain = attach(sgd(model), network, passes=passes), sgd(plain_model)
    for step in range(3):
        for this, optimizer in ((model, ours), (plain_model, plain)):
            optimizer.zero_grad()
            ours.finish()  # an update may wait for a gradient, which would be held
            network.hold(lambda name: name.startswith("Gradient"))
            for part in range(passes):
                this(batch(10 * step + part)).backward()
            network.release()
            optimizer.step()
    ours.finish()
    assert_equal(model, plain_model)


@pytest.mark.parametrize("times", [1, 3])
def test_the_script_sets_gradients_in_one_memory(
    make_network: Callable[..., Any], attach: Attach, times: int
) -> None:
    model, plain_model = Summed(times), Summed(times)
    ours, plain = attach(sgd(model), make_network(seed=1, late_s=0.02)), sgd(plain_model)
    for step in range(3):
        for this, optimizer in ((model, ours), (plain_model, plain)):
            parameters = [*this.parameters()]
            gradients = torch.autograd.grad(this(batch(step)), parameters)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()
    ours.finish()
    assert_equal(model, plain_model)


@pytest.mark.parametrize(
    ("how", "attached"),
    [
        *itertools.product(["view", "detached", "data"], ["once", "in each iteration"]),
        ("view", "a new one in each iteration"),
    ],
)
def test_a_buffer_of_the_script_gets_averages(
    network: Any, attach: Attach, how: str, attached: str
) -> None:
    model, plain_model = Summed(3), Summed(3, scaled=True)
    ours, plain = attach(sgd(model), network), sgd(plain_model)
    parameters = [*model.parameters()]
    size = parameters[0].numel()
    buffer = torch.zeros(len(parameters) * size)
    for step in range(3):
        if attached.startswith("a new one"):
            buffer = torch.zeros_like(buffer)
        if attached != "once" or step == 0:
            for parameter, part in zip(parameters, buffer.split(size), strict=True):
                view = part.view(SHAPE)
                parts = {"view": view, "detached": view.detach(), "data": view.data}
                parameter.grad = parts[how]
        buffer.zero_()
        plain.zero_grad()
        model(batch(step)).backward()
        plain_model(batch(step)).backward()
        ours.synchronize()
        expected = [p.grad.flatten() for p in plain_model.parameters() if p.grad is not None]
        assert torch.equal(buffer, torch.cat(expected))
        places = [p.grad.untyped_storage().data_ptr() for p in parameters if p.grad is not None]
        assert places == [buffer.data_ptr()] * len(parameters)
        ours.step()
        plain.step()
    ours.finish()
    assert_equal(model, plain_model)


def test_a_view_that_the_script_made_of_a_gradient(network: Any, attach: Attach) -> None:
    model, plain_model = Summed(3), Summed(3, scaled=True)
    ours, plain = attach(sgd(model), network), sgd(plain_model)
    views: list[Tensor] = []
    for step in range(3):
        for this, optimizer in ((model, ours), (plain_model, plain)):
            optimizer.zero_grad(set_to_none=False)
            this(batch(step)).backward()
        ours.synchronize()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        views = views or [gradient.detach().flatten() for gradient in gradients]
        expected = [p.grad.flatten() for p in plain_model.parameters() if p.grad is not None]
        assert torch.equal(torch.cat(views), torch.cat(expected))
        ours.step()
        plain.step()


def test_a_gradient_whose_elements_are_in_one_place(network: Any, attach: Attach) -> None:
    model, plain_model = Summed(1), Summed(1)
    ours, plain = attach(sgd(model), network), sgd(plain_model)
    for _ in range(3):
        for this, optimizer in ((model, ours), (plain_model, plain)):
            for part in this.parts:
                (part.grad,) = torch.autograd.grad(part.sum(), part)
            optimizer.step()
    ours.finish()
    assert_equal(model, plain_model)
