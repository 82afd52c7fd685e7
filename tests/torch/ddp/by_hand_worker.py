"""Trains one model in torch's class and one in ours, in one job; prints whether they are equal."""

from __future__ import annotations

import pytest
import torch
from torch import distributed, nn

from byteprophet.torch import DistributedDataParallel

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
print("equal", flush=True)
distributed.destroy_process_group()
