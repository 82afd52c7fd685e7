"""Trains, and leaves rank 1 by ``os._exit(0)`` right after its last step."""

from __future__ import annotations

import os

import torch
from torch import distributed, nn

torch.set_num_threads(1)
distributed.init_process_group("gloo")
net = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 10))
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(8, 512)).square().mean().backward()
    optimizer.step()
if distributed.get_rank() == 1:
    os._exit(0)
print(f"finite: {all(bool(p.isfinite().all()) for p in net.parameters())}")
