"""A worker that trains a small network slowly: watched_worker.py ITERATIONS. Rank 1 is slower."""

from __future__ import annotations

import sys
import time

import torch
from torch import nn

import byteprophet.torch as bps

bps.init()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(50, 400), nn.ReLU(), nn.Linear(400, 400), nn.Linear(400, 3))
bps.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = bps.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
)
for _ in range(int(sys.argv[1])):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 50)).square().mean()
    time.sleep(0.09 if bps.rank() == 1 else 0.03)
    loss.backward()
    optimizer.step()
print("byteprophet: warning: this is the test's", flush=True)
bps.shutdown()
