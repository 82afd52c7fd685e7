"""A rank of two: ``gradients_worker.py SYNC FOLDER WAY ...``.

For each WAY, trains under the strategy in ``FOLDER/<WAY>.json``, and then again by plain torch
code, which computes the gradients of both ranks itself, casts and averages them by hand, and
accumulates batches by itself. Writes to ``FOLDER/rank-<rank>.json`` the parameters of both.
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim.lr_scheduler import StepLR

import byteprophet.torch as bps
from byteprophet.job.strategy_file import read_strategy_file
from byteprophet.torch.tensors.reduce_dtypes import REDUCE_DTYPES

sys.path.insert(0, str(Path(__file__).parents[1]))
from partly_used import Net, batches, loss

RANKS = 2
CLIPS = "clip"


def clear(model: Net, optimizer: Any, step: int) -> None:
    """Clear gradients in one of the ways that scripts know."""
    if step % 4 == 0:
        optimizer.zero_grad()
    elif step % 4 == 1:
        model.zero_grad()
    elif step % 4 == 2:
        optimizer.zero_grad(set_to_none=False)
    else:
        for parameter in model.parameters():
            parameter.grad = None


def given(sync: str, path: Path) -> dict[str, Any]:
    model = Net()
    optimizer: Any = bps.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), lr=0.01), model=model, sync=sync, strategy=path
    )
    schedule = StepLR(optimizer, 3, 0.9)
    norms = []
    for step, both in enumerate(batches(RANKS)):
        clear(model, optimizer, step)
        loss(model, both[bps.rank()], step).backward()
        if path.stem.startswith(CLIPS):
            norms.append(float(clip_grad_norm_(model.parameters(), 0.1)))
            clip_grad_value_(model.parameters(), 0.01)
        optimizer.step()
        schedule.step()
    optimizer.finish()
    return {
        "parameters": [p.detach().tolist() for p in model.parameters()],
        "bucketed": optimizer._front.synchroniser.bucketed,
        "iterations": optimizer._front.synchroniser.begin_iteration() - 1,
        "rate": schedule.get_last_lr(),
    }


def averaged(sync: str, gradients: list[Tensor], reduce_dtype: str) -> Tensor:
    """The average as the transport makes it: servers add in the type that travels."""
    if reduce_dtype:
        gradients = [each.to(REDUCE_DTYPES[reduce_dtype]) for each in gradients]
    one, other = gradients
    if sync == "byteps":
        return (one + other).div_(RANKS).float()
    return ((one.float() + other.float()) * 0.5).to(one.dtype).float()


def by_hand(sync: str, path: Path) -> dict[str, Any]:
    strategy = read_strategy_file(path).strategy
    steps = strategy.accumulation
    model = Net()
    parameters = [*model.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=0.01)
    schedule = StepLR(optimizer, 3, 0.9)
    sums = [[torch.zeros_like(p) for p in parameters] for _ in range(RANKS)]
    for step, both in enumerate(batches(RANKS)):
        for rank in range(RANKS):
            model.zero_grad()
            loss(model, both[rank], step).backward()
            for parameter, total in zip(parameters, sums[rank], strict=True):
                if parameter.grad is not None:
                    total.add_(parameter.grad)
        if step % steps == steps - 1:
            for place, parameter in enumerate(parameters):
                means = [sums[rank][place] / steps for rank in range(RANKS)]
                parameter.grad = averaged(sync, means, strategy.reduce_dtype)
                for rank in range(RANKS):
                    sums[rank][place].zero_()
            if path.stem.startswith(CLIPS):
                clip_grad_norm_(parameters, 0.1)
                clip_grad_value_(parameters, 0.01)
            optimizer.step()
        schedule.step()
    return {
        "parameters": [p.detach().tolist() for p in parameters],
        "rate": schedule.get_last_lr(),
    }


def main(sync: str, folder: Path, ways: list[str]) -> None:
    if sync == "byteps":
        bps.init()
    else:
        distributed.init_process_group("gloo")
    results = {}
    for way in ways:
        path = folder / f"{way}.json"
        results[way] = {"given": given(sync, path), "by hand": by_hand(sync, path)}
        gc.collect()  # the next model's parameters take these names
    (folder / f"rank-{bps.rank()}.json").write_text(json.dumps(results))
    if sync != "byteps":
        distributed.barrier()
        distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
