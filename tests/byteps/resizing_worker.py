"""Two workers; the first leaves; the other goes on alone, as the first; a new one joins it.

As ``resizing_worker.py alone``, it begins with one worker, which makes a new optimizer when another
one has joined it. The newcomer runs this script again, as ``resizing_worker.py late``. The test
starts it, with the variables in the line ``newcomer JSON``, as somebody who adds a worker to a
running job would. It lives until its standard input is closed.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import byteps.torch as bps
import torch
from torch import nn


def distributed(model: nn.Module) -> Any:
    """A distributed optimizer of ``model``."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


def train(model: nn.Module, optimizer: Any, first: int, end: int) -> None:
    """Steps ``first`` to ``end``, and what came out."""
    for step in range(first, end):
        optimizer.zero_grad()
        torch.manual_seed(100 * bps.rank() + step)
        model(torch.randn(4, 300)).square().mean().backward()
        optimizer.step()
    total = hashlib.sha256()
    for tensor in model.state_dict().values():
        total.update(tensor.numpy().tobytes())
    sys.stdout.write(f"after {end} steps, rank {bps.rank()}: {total.hexdigest()}\n")


def ask_for_newcomer() -> None:
    sockets = Path(os.environ["BYTEPS_SOCKET_PATH"]).with_name("late")
    sockets.mkdir()
    own = ("BYTEPS_", "BYTEPROPHET_", "DMLC_")
    variables = {name: value for name, value in os.environ.items() if name.startswith(own)}
    variables.pop("BYTEPS_GLOBAL_RANK", None)  # resume() sets it
    del variables["BYTEPROPHET_RUN"]  # the launcher kills what has it when its job is over
    variables |= {
        "DMLC_NUM_WORKER": "2",
        "DMLC_WORKER_ID": "1",
        "BYTEPS_SOCKET_PATH": str(sockets),
    }
    print("newcomer", json.dumps(variables), flush=True)


def main() -> None:
    """Same calls in the same order everywhere: so everybody declares the same names."""
    way = sys.argv[1] if len(sys.argv) > 1 else ""
    bps.init()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(300, 500), nn.Tanh(), nn.Linear(500, 3))
    optimizer = distributed(model)
    if way == "alone":
        train(model, optimizer, 0, 5)
        bps.suspend()
        ask_for_newcomer()
        del optimizer
        bps.resume(2, 1, 0)
        optimizer = distributed(model)
    elif way != "late":
        bps.broadcast_parameters(model.state_dict(), root_rank=0)
        bps.broadcast_optimizer_state(optimizer, root_rank=0)
        train(model, optimizer, 0, 3)
        bps.suspend()
        if bps.rank() == 0:
            return
        bps.resume(1, 1, 0)
        train(model, optimizer, 3, 5)
        bps.suspend()
        ask_for_newcomer()
        bps.resume(2, 1, 0)
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    bps.broadcast_optimizer_state(optimizer, root_rank=0)
    train(model, optimizer, 5, 8)
    bps.shutdown()
    if way == "late":
        sys.stdin.read()


if __name__ == "__main__":
    main()
