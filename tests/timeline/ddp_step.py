"""Trains two steps with DistributedDataParallel over gloo and profiles them: PATH RANK STORE."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

path, rank, store = sys.argv[1], int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2)
layers = torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
model = DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with profile(
    activities=[ProfilerActivity.CPU],
    record_shapes=True,
    schedule=schedule(wait=0, warmup=1, active=2, repeat=1),
    on_trace_ready=lambda profiler: profiler.export_chrome_trace(path),
) as profiler:
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).sum().backward()
        optimizer.step()
        profiler.step()
dist.destroy_process_group()
