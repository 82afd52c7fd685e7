"""Rank 0 makes calls that all ranks must make together; rank 1 does not, and at last it ends.

``alone_worker.py FOLDER``; rank 0 prints what each call says. Every call has a process group and an
optimizer of its own, as one that has failed is of no use any more.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn

from byteprophet.torch import DistributedOptimizer

SHORT_S = 1.0


class Training:
    """Two iterations by both ranks; no wait after them is long."""

    def __init__(self, sync: str) -> None:
        self.model = nn.Linear(5, 3)
        plain = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.optimizer: Any = DistributedOptimizer(plain, model=self.model, sync=sync)
        for _ in range(2):
            self.backward()
            self.optimizer.step()
        self.optimizer.finish()
        distributed.barrier()
        front = self.optimizer._front
        front._settings = replace(front._settings, timeout_s=SHORT_S)
        for part in (front.gradients.unsharding, front.updater, front.synchroniser):
            part._timeout_s = SHORT_S

    def backward(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.ones(2, 5)).sum().backward()

    def add(self) -> None:
        self.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})

    def clip(self) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)

    def touch(self) -> None:
        self.model.weight.grad.sum()  # type: ignore[union-attr]

    def hooked_step(self) -> None:
        self.optimizer.register_step_pre_hook(lambda *_: None)
        self.optimizer.step()

    def go_on(self) -> None:
        self.backward()
        self.optimizer.step()
        self.optimizer.finish()


# Name, sync, whether both ranks have gradients before, and what rank 0 does.
CALLS: tuple[tuple[str, str, bool, Callable[[Training], object]], ...] = (
    ("state_dict", "dear", False, lambda it: it.optimizer.state_dict()),
    ("add_param_group", "dear", False, Training.add),
    ("add_param_group of whole ones", "allreduce", False, Training.add),
    ("clip_grad_norm_", "dear", True, Training.clip),
    ("synchronize", "dear", True, lambda it: it.optimizer.synchronize()),
    ("grad", "dear", True, Training.touch),
    ("hooked step", "dear", True, Training.hooked_step),
    ("loop", "allreduce", False, Training.go_on),
)


def main(folder: str) -> None:
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    for number, (name, sync, with_gradients, call) in enumerate(CALLS):
        place = (Path(folder) / f"store-{number}").as_uri()
        distributed.init_process_group("gloo", init_method=place, rank=rank, world_size=2)
        training = Training(sync)
        if with_gradients:
            training.backward()
        if rank == 0:
            try:
                call(training)
            except RuntimeError as error:
                print(f"{name}: {error}", flush=True)
        distributed.barrier()
        training.optimizer._front.updater.forget()
        distributed.destroy_process_group()
    place = (Path(folder) / "store").as_uri()
    distributed.init_process_group("gloo", init_method=place, rank=rank, world_size=2)
    training = Training("dear")
    if rank == 0:
        training.optimizer._front.gradients.unsharding._timeout_s = 60.0
        try:
            training.optimizer.state_dict()
        except RuntimeError as error:
            print(f"ended: {error}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
