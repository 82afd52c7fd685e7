"""A rank that loads what plain torch has saved: ``checkpoint_worker.py OPTIONS``, JSON.

Plain torch trains by the averages of all ranks' gradients, and saves in the middle by
``torch.distributed.checkpoint``. Under each strategy of ``ways``, which is in ``<out>/<way>.json``,
training goes on from there, once from the loaded checkpoint and once from plain torch's
``state_dict()``. Writes ``rank-<rank>.pt`` to ``out``.
"""

from __future__ import annotations

import copy
import gc
import json
import sys
from pathlib import Path
from typing import Any

import torch
from partly_used import Net, batches, loss
from torch import Tensor, distributed, nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

from byteprophet.torch import DistributedOptimizer

SAVED_AFTER = 5


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def train_plainly(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: list[tuple[int, Tensor]]
) -> None:
    for step, batch in steps:
        optimizer.zero_grad()
        for own in batch:
            (loss(model, own, step) / len(batch)).backward()
        for parameter in model.parameters():  # as ours, which averages zeros
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        optimizer.step()


def go_on(
    model: nn.Module, optimizer: Any, steps: list[tuple[int, Tensor]], rank: int
) -> list[Tensor]:
    for step, batch in steps:
        optimizer.zero_grad()
        loss(model, batch[rank], step).backward()
        optimizer.step()
    optimizer.finish()
    return [parameter.detach().clone() for parameter in model.parameters()]


def state_of(model: nn.Module, optimizer: Any) -> dict[str, Any]:
    return {"model": model.state_dict(), "optimizer": get_optimizer_state_dict(model, optimizer)}


def main() -> None:
    options = json.loads(sys.argv[1])
    out = Path(options["out"])
    distributed.init_process_group("gloo")
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    steps = [*enumerate(batches(ranks))]
    first, second = steps[:SAVED_AFTER], steps[SAVED_AFTER:]
    model = Net()
    plain = optimizer_of(model)
    train_plainly(model, plain, first)
    checkpoint.save(state_of(model, plain), checkpoint_id=out / "plain")
    middle = {name: value.clone() for name, value in model.state_dict().items()}
    saved = plain.state_dict()
    found: dict[str, Any] = {}
    for way in options["ways"]:
        for loads in ("set", "load"):
            ours = Net()
            base = optimizer_of(ours)
            read = state_of(ours, base)
            base.state.clear()  # the template was made by a step of torch's own
            path = out / f"{way}.json"
            optimizer = DistributedOptimizer(base, model=ours, sync="allreduce", strategy=path)
            if loads == "set":
                checkpoint.load(read, checkpoint_id=out / "plain")
                ours.load_state_dict(read["model"])
                set_optimizer_state_dict(ours, optimizer, read["optimizer"])
            else:
                ours.load_state_dict(middle)
                optimizer.load_state_dict(copy.deepcopy(saved))  # which shares tensors
            found[f"{way} {loads}"] = go_on(ours, optimizer, second, rank)
            if way == "none":
                checkpoint.save(state_of(ours, optimizer), checkpoint_id=out / f"ours-{loads}")
            del ours, base, optimizer  # another one may have the names then
            gc.collect()
    train_plainly(model, plain, second)
    found["plain"] = [parameter.detach() for parameter in model.parameters()]
    found["plain state"] = state_of(model, plain)
    again = Net()
    found["ours"] = state_of(again, optimizer_of(again))
    checkpoint.load(found["ours"], checkpoint_id=out / "ours-set")
    torch.save(found, out / f"rank-{rank}.pt")


if __name__ == "__main__":
    main()
