"""A rank of a job with servers: ``keys_worker.py [STRATEGY-OF-RANK-1]``.

Trains for a few iterations, is suspended, trains on, and prints a digest of all parameters. Small
gradients share buffers.
"""

from __future__ import annotations

import hashlib
import os
import sys

import torch
from torch import nn

import byteprophet.torch as bps
from byteprophet.errors import UserError

ITERATIONS = 8


def main() -> None:
    bps.init()
    rank, size = bps.rank(), bps.size()
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, 40), nn.Tanh(), nn.Linear(40, 400), nn.Tanh(), nn.Linear(400, 1000)
    )
    given = {"strategy": sys.argv[1]} if rank == 1 and sys.argv[1:] else {}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = bps.DistributedOptimizer(optimizer, model=model, **given)
    for iteration in range(ITERATIONS):
        torch.manual_seed(100 * rank + iteration)
        optimizer.zero_grad()
        loss = model(torch.randn(4, 64)).square().mean()
        try:
            loss.backward()
        except UserError as error:
            sys.exit(f"refused: {error}")
        optimizer.step()
        if iteration == ITERATIONS // 2:
            bps.suspend()
            bps.resume(size, int(os.environ["DMLC_NUM_SERVER"]), rank)
    total = hashlib.sha256()
    for tensor in model.state_dict().values():
        total.update(tensor.numpy().tobytes())
    sys.stdout.write(f"digest {total.hexdigest()}\n")
    bps.shutdown()


if __name__ == "__main__":
    main()
