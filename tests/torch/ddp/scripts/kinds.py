"""Types and layouts of parameters, and optimizers that update many at once."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from common import STEPS, Net, batch, loss_of, script, start, train, wrap
from torch import Tensor, nn


@script
def double_precision() -> Iterable[Tensor]:
    model = Net(norm=True).double()
    ddp = wrap(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        ddp(batch(step).double()).square().mean().backward()
        optimizer.step()
    return [*model.parameters(), *model.buffers()]


@script
def half_precision() -> Iterable[Tensor]:
    model = Net().half()
    ddp = wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for step in range(STEPS):
        optimizer.zero_grad()
        # Scaled: ours rounds gradients below 6e-5 otherwise (docs/ddp.md).
        (1000 * ddp(batch(step).half()).square().mean()).backward()
        optimizer.step()
    return [parameter.float() for parameter in model.parameters()]


@script
def parameters_of_several_types() -> Iterable[Tensor]:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into = nn.Linear(6, 90)
            self.middle = nn.Linear(90, 90).double()
            self.out = nn.Linear(90, 3).bfloat16()

        def forward(self, x: Tensor) -> Tensor:
            x = self.into(x).tanh()
            x = self.middle(x.double()).tanh()
            result: Tensor = self.out(x.bfloat16())
            return result

    model, ddp = start(Mixed)
    train(ddp, torch.optim.AdamW(model.parameters(), lr=0.01))
    return [parameter.double() for parameter in model.parameters()]


@script
def complex_parameters() -> Iterable[Tensor]:
    class Complex(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into = nn.Linear(6, 40, dtype=torch.complex64)
            self.out = nn.Linear(40, 3, dtype=torch.complex64)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.into(x.to(torch.complex64)).tanh()).abs()

    model, ddp = start(Complex)
    train(ddp, torch.optim.SGD(model.parameters(), lr=0.1))
    return [torch.view_as_real(parameter.detach()) for parameter in model.parameters()]


@script
def channels_last() -> Iterable[Tensor]:
    model = nn.Sequential(
        nn.Conv2d(3, 24, 3), nn.BatchNorm2d(24), nn.ReLU(), nn.Conv2d(24, 8, 3), nn.Flatten()
    ).to(memory_format=torch.channels_last)
    ddp = wrap(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        images = batch(step).repeat(1, 32).view(8, 3, 8, 8)
        ddp(images.contiguous(memory_format=torch.channels_last)).square().mean().backward()
        optimizer.step()
    strides = torch.tensor(model[0].weight.stride())
    return [*model.parameters(), *model.buffers(), strides]


@script
def updates_of_many_parameters_at_once() -> Iterable[Tensor]:
    result: list[Tensor] = []
    for kind, how in (
        (torch.optim.SGD, {"foreach": True}),
        (torch.optim.Adam, {"foreach": True}),
        (torch.optim.SGD, {"fused": True}),
        (torch.optim.AdamW, {"fused": True}),
    ):
        model, ddp = start()
        train(ddp, kind(model.parameters(), lr=0.01, **how), range(4))
        result += model.parameters()
    return result


@script
def grad_scaler_and_a_fused_optimizer() -> Iterable[Tensor]:
    model, ddp = start()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
    for step in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(loss_of(ddp, step)).backward()
        if step == 4:
            model.out.weight.grad[0, 0] = torch.inf  # this step is left out
        scaler.step(optimizer)
        scaler.update()
    return [*model.parameters(), torch.tensor(scaler.get_scale())]
