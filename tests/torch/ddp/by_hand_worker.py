"""Trains models in torch's class and in ours, in one job; prints whether they are equal."""

from __future__ import annotations

from itertools import groupby

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel as TorchsOwn

from byteprophet.torch import DistributedDataParallel
from byteprophet.torch.ddp.trial import process_trial

torch.set_num_threads(1)
distributed.init_process_group("gloo")
rank = distributed.get_rank()


def trained(kind: type[nn.parallel.DistributedDataParallel]) -> tuple[nn.Module, str]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 4))
    ddp = kind(model)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-2)
    for step in range(8):
        optimizer.zero_grad()
        generator = torch.Generator().manual_seed(10 * step + rank)
        ddp(torch.randn(8, 32, generator=generator)).square().mean().backward()
        optimizer.step()
    return model, type(optimizer).__module__.partition(".")[0]


plain, by_torch = trained(nn.parallel.DistributedDataParallel)
ours, by_us = trained(DistributedDataParallel)
pairs = zip(plain.parameters(), ours.parameters(), strict=True)
assert all(torch.equal(one, two) for one, two in pairs)
assert (by_torch, by_us) == ("torch", "byteprophet")
with pytest.raises(ValueError, match="dear-planned"):
    DistributedDataParallel(nn.Linear(1, 1), sync="byteps")


def two_trained(syncs: tuple[str, ...]) -> tuple[list[Tensor], list[list[str]]]:
    """The parameters of two models, and who exchanged the gradients of each in every step."""
    torch.manual_seed(0)
    nets = [nn.Linear(32, 4) for _ in range(2)]
    ddps = [
        DistributedDataParallel(net, sync=sync) if sync else TorchsOwn(net)
        for net, sync in zip(nets, syncs, strict=True)
    ]
    optimizers = [torch.optim.AdamW(net.parameters(), lr=1e-2) for net in nets]
    seen: list[list[str]] = [[], []]
    for step in range(60):
        for ddp, optimizer, by in zip(ddps, optimizers, seen, strict=True):
            optimizer.zero_grad()
            generator = torch.Generator().manual_seed(10 * step + rank)
            ddp(torch.randn(8, 32, generator=generator)).square().mean().backward()
            optimizer.step()
            by.append(type(optimizer).__module__.partition(".")[0])
    return [parameter.detach() for net in nets for parameter in net.parameters()], seen


process_trial().times_ns = lambda _: (0.0, 1.0)  # type: ignore[method-assign]
values, (tried, other) = two_trained(("auto", "allreduce"))
assert {*other} == {"byteprophet"}
assert [who for who, _ in groupby(tried)] == ["torch", "byteprophet", "torch"]
assert all(map(torch.equal, values, two_trained(("", ""))[0]))
print("equal", flush=True)
distributed.destroy_process_group()
