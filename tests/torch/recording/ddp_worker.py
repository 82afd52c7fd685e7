"""A worker that trains under DistributedDataParallel and prints its parameters' hash.

ddp_worker.py RANK SIZE RENDEZVOUS RECORDED: the last a directory to record to, or "".
"""

from __future__ import annotations

import contextlib
import hashlib
import sys

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import byteprophet.torch as bps

rank, size, rendezvous, directory = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:5]
torch.set_num_threads(1)
distributed.init_process_group(
    "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=size
)
torch.manual_seed(0)
inner = nn.Sequential(
    nn.Linear(64, 700), nn.ReLU(), nn.Linear(700, 700), nn.ReLU(), nn.Linear(700, 7)
)
model = DistributedDataParallel(inner, bucket_cap_mb=0.2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train(iterations: int, passes: int = 1, clips: bool = False) -> None:
    for iteration in range(iterations):
        generator = torch.Generator().manual_seed(100 * rank + iteration)
        optimizer.zero_grad()
        for number in range(1, passes + 1):
            with model.no_sync() if number < passes else contextlib.nullcontext():
                model(torch.randn(8, 64, generator=generator)).square().mean().backward()
        if clips:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()


if directory:
    with bps.record(model, directory):
        train(6)
    train(2)  # not recorded
    with bps.record(model, directory, steps=(2, 4)):
        train(6)
    with bps.record(model, directory):
        train(4, passes=3)
    with bps.record(model, directory):
        train(4, clips=True)
else:
    train(6)
    train(2)
    train(6)
    train(4, passes=3)
    train(4, clips=True)
values = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
print(hashlib.sha256(values).hexdigest())
distributed.destroy_process_group()
