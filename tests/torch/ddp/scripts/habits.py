"""Habits of training scripts around the loop: loaders, profilers, and values changed by hand."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import torch
from common import STEPS, batch, loss_of, script, start, train
from torch import Tensor
from torch.utils.data import DataLoader


@script
def data_from_worker_processes() -> Iterable[Tensor]:
    model, ddp = start()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for epoch in range(2):
        data = [batch(STEPS * epoch + step) for step in range(STEPS)]
        loader: Iterable[Tensor] = DataLoader(data, batch_size=None, num_workers=2)
        for inputs in loader:
            optimizer.zero_grad()
            ddp(inputs).square().mean().backward()
            optimizer.step()
    return model.parameters()


@script
def anomalies_and_profiles() -> Iterable[Tensor]:
    model, ddp = start()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with torch.autograd.set_detect_anomaly(True), torch.profiler.profile():
        train(ddp, optimizer, range(4))
    train(ddp, optimizer, range(4, STEPS))
    return model.parameters()


@script
def rates_changed_by_hand() -> Iterable[Tensor]:
    model, ddp = start()
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.01), foreach=False)
    for step in range(STEPS):
        train(ddp, optimizer, [step])
        (group,) = optimizer.param_groups
        if step % 2:
            group["lr"].mul_(0.5)  # step() has used the old one, even if it has not ended
        else:
            group["lr"], group["weight_decay"] = torch.tensor(0.02), 0.1
    return model.parameters()


@script
def weights_changed_by_hand() -> Iterable[Tensor]:
    model, ddp = start()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(STEPS):
        train(ddp, optimizer, [step])
        with torch.no_grad():
            model.into.weight.clamp_(-0.1, 0.1)
            model.out.bias.copy_(model.out.bias.round(decimals=2))
        model.middle.weight.data *= 0.99
        model.more.bias.data = torch.full((150,), 0.01 * step)  # nothing is read before
    return model.parameters()


@script
def many_tensors_read_at_once() -> Iterable[Tensor]:
    model, ddp = start()
    average = copy.deepcopy(model)
    ours, its = [*model.parameters()], [*average.parameters()]
    optimizer = torch.optim.SGD(ours, lr=0.1, momentum=0.9)
    seen = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(ddp, step).backward()
        seen += torch._foreach_norm([each.grad for each in ours if each.grad is not None])
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(its, ours, 0.1)
        seen.append(torch.nn.utils.parameters_to_vector(ours).detach().norm())
        seen.append(torch.from_numpy(model.out.weight.detach().numpy().copy()))
    return [*ours, *its, *seen]
