"""Ranks that are forks, and that fork: ``forked_worker.py OPTIONS``, JSON with ``out``.

Rank 0 trains in a process of multiprocessing's, which ends right after the last step. Rank 1 saves
its parameters in another one, which it starts while updates are outstanding. Rank and peers come
from the environment, as torchrun sets it.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn

WIDTH = 1000  # enough to be on its way when rank 0 ends
ITERATIONS = 5
forks = multiprocessing.get_context("fork")


def save(model: nn.Module, path: Path) -> None:
    model.eval()
    torch.save(model.state_dict(), path)


def save_in_child(model: nn.Module, path: Path) -> None:
    child = forks.Process(target=save, args=(model, path))
    child.start()
    child.join(30)
    waits = child.is_alive()
    child.kill()
    assert not waits
    for name, value in torch.load(path).items():
        assert torch.equal(value, model.state_dict()[name])


def train(out: Path) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    from byteprophet.torch import DistributedOptimizer

    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3)))
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = DistributedOptimizer(optimizer, model=model, sync="dear", fusion=1)
    store = distributed.distributed_c10d._get_default_store()
    for iteration in range(ITERATIONS):
        optimizer.zero_grad()
        loss = model(torch.ones(2, WIDTH)).square().mean()
        saves = iteration == ITERATIONS - 2
        if saves and distributed.get_rank() == 0:
            store.wait(["stepped"], timedelta(seconds=100))
        loss.backward()
        optimizer.step()
        if saves and distributed.get_rank() == 1:
            assert optimizer._front.updater.outstanding
            store.set("stepped", "")
            save_in_child(model, out / "saved.pt")
    if distributed.get_rank() == 1:
        optimizer.finish()


def main() -> None:
    out = Path(json.loads(sys.argv[1])["out"])
    if os.environ["RANK"] == "1":
        train(out)
        return
    rank = forks.Process(target=train, args=(out,))
    rank.start()
    rank.join()
    sys.exit(rank.exitcode)


if __name__ == "__main__":
    main()
