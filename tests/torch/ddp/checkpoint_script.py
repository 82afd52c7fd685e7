"""Trains six steps and rank 0 saves, or goes on from that: ``checkpoint_script.py FILE RESULT``.

Goes on if FILE is there. Rank 0 writes its parameters to RESULT.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import distributed, nn

torch.set_num_threads(1)
distributed.init_process_group("gloo")
rank = distributed.get_rank()
file, result = map(Path, sys.argv[1:])
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 4))
ddp = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
first = 0
if file.exists():
    first = 6
    saved = torch.load(file)
    ddp.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    schedule.load_state_dict(saved["schedule"])
distributed.barrier()
for step in range(first, first + 6):
    optimizer.zero_grad()
    generator = torch.Generator().manual_seed(10 * step + rank)
    ddp(torch.randn(8, 32, generator=generator)).square().mean().backward()
    optimizer.step()
    schedule.step()
if rank == 0:
    torch.save(
        {
            "model": ddp.state_dict(),
            "optimizer": optimizer.state_dict(),
            "schedule": schedule.state_dict(),
        },
        file,
    )
    torch.save([*model.parameters()], result)
del ddp  # before the group, whose last owner its reducer must not be (trial_script.py)
distributed.destroy_process_group()
