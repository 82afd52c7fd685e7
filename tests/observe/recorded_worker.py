"""A worker that trains a small network; recorded_worker.py ITERATIONS [START STOP]...

Recording starts after iteration START (0: before the first) and stops after iteration STOP. The
last thing said is the hash of the parameters. With BYTEPROPHET_TEST_RANK_1_FAILS set, rank 1 is
killed instead.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time

import torch
from torch import nn

import byteprophet.torch as bps
from byteprophet.observe.observer import PERIOD_S

iterations, *moments = (int(argument) for argument in sys.argv[1:])
starts, stops = moments[0::2], moments[1::2]
bps.init()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(50, 400), nn.ReLU(), nn.Linear(400, 400), nn.Linear(400, 3))
bps.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = bps.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
)
for iteration in range(iterations):
    if iteration in starts:
        bps.start_recording()
    if iteration in stops:
        bps.stop_recording()
    generator = torch.Generator().manual_seed(100 * bps.rank() + iteration)
    optimizer.zero_grad()
    model(torch.randn(4, 50, generator=generator)).square().mean().backward()
    optimizer.step()
if os.environ.get("BYTEPROPHET_TEST_RANK_1_FAILS") and bps.rank() == 1:
    optimizer.finish()
    time.sleep(4 * PERIOD_S)  # spans are saved meanwhile
    os.kill(os.getpid(), signal.SIGKILL)
values = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
print("parameters", hashlib.sha256(values).hexdigest(), flush=True)
if os.environ.get("BYTEPROPHET_TEST_RANK_1_FAILS"):
    signal.pause()
bps.shutdown()
