"""Trains until a rank meets with an accident: ``lost_script.py killed|stopped|raises RANK``."""

from __future__ import annotations

import itertools
import os
import signal
import sys

import torch
from torch import Tensor, distributed, nn

_ACCIDENT_AT = 12  # by then, dear-planned has measured its iterations


class Layer(nn.Linear):
    """Meets with an accident in its last forward, on one rank."""

    def forward(self, x: Tensor) -> Tensor:
        if step == _ACCIDENT_AT and distributed.get_rank() == int(sys.argv[2]):
            print("accident", flush=True)
            if sys.argv[1] == "raises":
                raise ValueError("a bad sample")
            number = signal.SIGKILL if sys.argv[1] == "killed" else signal.SIGSTOP
            os.kill(os.getpid(), number)
        return super().forward(x)


torch.set_num_threads(1)
distributed.init_process_group("gloo")
net = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), Layer(64, 4))
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in itertools.count():  # noqa: B007 (the layer looks at it)
    optimizer.zero_grad()
    model(torch.randn(8, 32)).square().mean().backward()
    optimizer.step()
