"""A plain script of DistributedDataParallel, which knows nothing of byteprophet.

``ddp_gradients_script.py FOLDER``: trains a model, and then again by plain code that casts and
averages the gradients of both ranks by hand, as torch's ``bf16_compress_hook`` does. Writes the
parameters of both to ``FOLDER/rank-<rank>.json``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

STEPS, BATCH, RANKS = 6, 8, 2


def made() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 2)
    )


def batches() -> list[Tensor]:
    lot = torch.Generator().manual_seed(5)
    return [torch.randn(RANKS, BATCH, 6, generator=lot) for _ in range(STEPS)]


def by_torch() -> list[Any]:
    model = DistributedDataParallel(made())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for both in batches():
        optimizer.zero_grad()
        model(both[distributed.get_rank()]).square().mean().backward()
        optimizer.step()
    return [p.detach().tolist() for p in model.parameters()]


def by_hand() -> list[Any]:
    model = made()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for both in batches():
        gradients = []
        for batch in both:
            model.zero_grad()
            model(batch).square().mean().backward()
            gradients.append([p.grad.bfloat16() / RANKS for p in model.parameters()])
        for parameter, one, other in zip(model.parameters(), *gradients, strict=True):
            parameter.grad = (one + other).float()
        optimizer.step()
    return [p.detach().tolist() for p in model.parameters()]


def main() -> None:
    distributed.init_process_group("gloo")
    results = {"torch": by_torch(), "by hand": by_hand()}
    path = Path(sys.argv[1]) / f"rank-{distributed.get_rank()}.json"
    path.write_text(json.dumps(results))
    distributed.barrier()
    distributed.destroy_process_group()


main()
