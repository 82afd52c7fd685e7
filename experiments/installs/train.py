"""The training script of ``installs.py``: ordinary BytePS, prints what its parameters became."""

from __future__ import annotations

import hashlib

import byteps.torch as bps
import torch

bps.init()
torch.manual_seed(1 + bps.rank())
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
bps.broadcast_parameters(model.state_dict(), root_rank=0)
for _ in range(20):
    inputs = torch.randn(32, 64)
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
digest = hashlib.sha256()
for values in model.state_dict().values():
    digest.update(values.numpy().tobytes())
print(f"rank {bps.rank()} has parameters {digest.hexdigest()[:12]}", flush=True)
bps.shutdown()
