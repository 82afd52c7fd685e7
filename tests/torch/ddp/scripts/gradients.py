"""What scripts do with gradients between backward and ``step()``."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext

import torch
from common import STEPS, batch, loss_of, script, start, train
from torch import Tensor, distributed, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_


@script
def clip_by_norm() -> Iterable[Tensor]:
    model, ddp = start()
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.01)
    norms = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(ddp, step).backward()
        norms.append(clip_grad_norm_(ddp.parameters(), 0.1))
        optimizer.step()
    return [*model.parameters(), *norms]


@script
def clip_by_value() -> Iterable[Tensor]:
    model, ddp = start()
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(ddp, step).backward()
        clip_grad_value_(ddp.parameters(), 0.001)
        optimizer.step()
    return model.parameters()


@script
def gradients_are_read_on_one_rank() -> Iterable[Tensor]:
    model, ddp = start()
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(ddp, step).backward()
        if distributed.get_rank() == 0:
            assert all(p.grad is not None and p.grad.norm() > 0 for p in ddp.parameters())
        optimizer.step()
    return model.parameters()


@script
def gradients_are_averages_after_backward() -> Iterable[Tensor]:
    model, ddp = start()
    seen = []
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for step in range(STEPS):
        ddp.zero_grad()
        loss_of(ddp, step).backward()
        seen += [p.grad.clone() for p in model.parameters() if p.grad is not None]
        optimizer.step()
    return [*model.parameters(), *seen]


@script
def gradients_are_changed_by_hand() -> Iterable[Tensor]:
    model, ddp = start()
    optimizer = torch.optim.Adam(ddp.parameters(), lr=0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(ddp, step).backward()
        for parameter in ddp.parameters():
            parameter.grad.mul_(0.5).add_(parameter.detach(), alpha=0.01)
        if step % 2:
            model.out.bias.grad = None
        optimizer.step()
    return model.parameters()


@script
def update_by_hand() -> Iterable[Tensor]:
    model, ddp = start()
    for step in range(STEPS):
        loss_of(ddp, step).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None
    return model.parameters()


@script
def a_part_has_no_optimizer() -> Iterable[Tensor]:
    model, ddp = start()
    optimizer = torch.optim.SGD(model.out.parameters(), lr=0.1)
    seen = []
    for step in range(STEPS):
        model.zero_grad()
        loss_of(ddp, step).backward()
        optimizer.step()
        seen.append(model.into.weight.grad.clone())
    return [*model.parameters(), *seen]


@script
def gradients_add_up_without_zero_grad() -> Iterable[Tensor]:
    model, ddp = start()
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    for step in range(STEPS):
        loss_of(ddp, step).backward()
        optimizer.step()
    return model.parameters()


@script
def two_backward_passes_per_step_without_no_sync() -> Iterable[Tensor]:
    model, ddp = start()
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(ddp, 2 * step).backward()
        loss_of(ddp, 2 * step + 1).backward()
        optimizer.step()
    return model.parameters()


@script
def accumulation_with_no_sync() -> Iterable[Tensor]:
    model, ddp = start()
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        for micro in range(3):
            with ddp.no_sync() if micro < 2 else nullcontext():
                (loss_of(ddp, 3 * step + micro) / 3).backward()
        optimizer.step()
    return model.parameters()


@script
def grad_scaler_and_autocast() -> Iterable[Tensor]:
    model, ddp = start()
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
    for step in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(ddp, step)
        scaler.scale(loss).backward()
        if step == 4:
            model.out.weight.grad[0, 0] = torch.inf  # this step is left out
        scaler.unscale_(optimizer)
        clip_grad_norm_(ddp.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    return [*model.parameters(), torch.tensor(scaler.get_scale())]


@script
def grad_scaler_without_unscale() -> Iterable[Tensor]:
    model, ddp = start()
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    for step in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(loss_of(ddp, step)).backward()
        scaler.step(optimizer)
        scaler.update()
    return model.parameters()


@script
def second_order_by_autograd_grad() -> Iterable[Tensor]:
    result: list[Tensor] = []
    for finds_unused in (False, True):
        model, ddp = start(find_unused_parameters=finds_unused)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(STEPS):
            optimizer.zero_grad()
            inputs = batch(step).requires_grad_(True)
            outputs = ddp(inputs)
            (slope,) = torch.autograd.grad(outputs.sum(), inputs, create_graph=True)
            (outputs.square().mean() + slope.square().mean()).backward()
            optimizer.step()
        result += model.parameters()
    return result


@script
def gradients_are_views_of_one_buffer() -> Iterable[Tensor]:
    model, ddp = start()
    buffer = torch.zeros(sum(parameter.numel() for parameter in model.parameters()))
    place = 0
    for parameter in model.parameters():
        parameter.grad = buffer[place : place + parameter.numel()].view_as(parameter)
        place += parameter.numel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for step in range(STEPS):
        buffer.zero_()
        loss_of(ddp, step).backward()
        seen.append(buffer.clone())
        optimizer.step()
    return [*model.parameters(), *seen]


@script
def gradients_of_several_parameters_in_one_memory() -> Iterable[Tensor]:
    class Summed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ParameterList([torch.randn(3, 6) for _ in range(40)])
            self.others = nn.ParameterList([torch.randn(3, 6) for _ in range(40)])

        def forward(self, x: Tensor) -> Tensor:
            used_once = torch.stack([*self.parts]).sum(0).t()
            often = torch.stack([*self.others]).sum(0).t()  # its gradient is added to in place
            return x @ used_once + torch.tanh(x @ often) + torch.sin(x @ often) + x.cos() @ often

    model, ddp = start(Summed)
    train(ddp, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    return model.parameters()
