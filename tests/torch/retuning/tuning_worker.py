"""A worker whose scheduler is tuned while it trains; rank 1 is slower, in some iterations.

Checks that the parameters are those of training without any of this, and writes down which settings
were taken over after which iteration.
"""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import byteprophet.torch as bps

STEPS = 110


def make() -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(300, 600), nn.Tanh(), nn.Linear(600, 200))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def loss(model: nn.Module, step: int, rank: int) -> Tensor:
    torch.manual_seed(10 * step + rank)
    value: Tensor = model(torch.randn(4, 300)).square().mean()
    return value


def expected() -> nn.Module:
    """Both ranks' gradients in one process: two addends sum to the same bits in either order."""
    model, optimizer = make()
    for step in range(STEPS):
        sums = [torch.zeros_like(p) for p in model.parameters()]
        for rank in range(2):
            optimizer.zero_grad()
            loss(model, step, rank).backward()
            for total, parameter in zip(sums, model.parameters(), strict=True):
                assert parameter.grad is not None
                total += parameter.grad
        for total, parameter in zip(sums, model.parameters(), strict=True):
            parameter.grad = total / 2
        optimizer.step()
    return model


def main() -> None:
    bps.init()
    model, optimizer = make()
    optimizer = bps.DistributedOptimizer(optimizer, model=model)
    pauses = random.Random(1)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss(model, step, bps.rank()).backward()
        if bps.rank() == 1 and step % 3 == 0:
            time.sleep(pauses.uniform(0, 0.01))
        optimizer.step()
    for ours, theirs in zip(model.parameters(), expected().parameters(), strict=True):
        assert torch.equal(ours, theirs)
    # Not to standard output, where other threads' messages may begin in the middle of a line.
    Path(f"applied-{bps.rank()}.json").write_text(
        json.dumps(optimizer._front._between_steps.applied)
    )
    bps.shutdown()


if __name__ == "__main__":
    main()
