"""A rank over the collectives of a process group: ``in_order_worker.py OPTIONS``, JSON.

OPTIONS has a folder, ``out``. Rank 0 decides the order of all operations. In each case, rank 1
waits for something before it makes the call that rank 0 has made already.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn

import byteprophet.torch as bps
from byteprophet.job import Bucket, Model, Parameter, Strategy
from byteprophet.job.staleness import read_staleness, with_staleness
from byteprophet.job.strategy_file import Used, write_strategy

LATE_S = 0.2
LARGE = 1 << 21


def read(model: nn.Module) -> Tensor:
    return torch.stack([parameter.detach().norm() for parameter in model.parameters()]).sum()


class Training:
    """A network of several buckets, after steps without overlap."""

    def __init__(self, rank: int, sync: str) -> None:
        self.rank = rank
        self.model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(6)))
        plain = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.optimizer: Any = bps.DistributedOptimizer(
            plain, model=self.model, sync=sync, fusion=1000
        )
        for _ in range(3):
            self.backward()
            self.optimizer.step()

    def backward(self, late_s: float = 0.0) -> None:
        self.optimizer.zero_grad()
        loss = self.model(torch.full((2, 16), 1.0 + self.rank)).square().mean()
        time.sleep(late_s)
        loss.backward()

    def step(self) -> None:
        """Rank 1 is late, so that rank 0 has all updates outstanding, and then it reads one."""
        self.backward(LATE_S * self.rank)
        self.optimizer.step()
        if self.rank == 1:
            read(self.model)


def messages(rank: int) -> None:
    for sync in ("allreduce", "dear"):
        training = Training(rank, sync)
        for _ in range(2):
            training.step()
            assert bps.push_pull(torch.tensor([3.0 + rank]), name="loss") == 3.5
        training.optimizer.finish()


def two_optimizers(rank: int) -> None:
    for sync in ("allreduce", "dear"):
        first, second = Training(rank, sync), Training(rank, sync)
        second.backward()
        first.step()
        nn.utils.clip_grad_norm_(second.model.parameters(), 0.1)
        second.optimizer.step()
        first.backward()
        second.step()
        first.optimizer.step()
        first.step()
        third = Training(rank, sync)
        for each in (first, second, third):
            each.optimizer.finish()


def unsharding(rank: int) -> None:
    first, second = Training(rank, "dear"), Training(rank, "dear")
    for _ in range(2):
        first.step()
        second.optimizer.state_dict()


class Delayed(nn.Module):
    """The exchange of the gradients in ``large`` takes longer than an iteration."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.large = nn.ParameterList(torch.zeros(LARGE) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x).square().sum() + sum(each.sum() for each in self.large)


def delayed_averages(rank: int, out: Path) -> None:
    model = Delayed()
    sizes = Model(tuple(Parameter(name, p.nbytes) for name, p in model.named_parameters()))
    buckets = tuple(Bucket((name,), place, place) for place, name in enumerate(sizes.names))
    strategy = Strategy("allreduce", buckets)
    path = out / f"delayed-{rank}.json"
    delays = read_staleness({"large.*": 1}, sizes)
    write_strategy(path, Used(sizes, with_staleness(strategy, delays), 0))
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = bps.DistributedOptimizer(optimizer, model=model, sync="allreduce", strategy=path)
    for iteration in range(8):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).backward()
        optimizer.step()
        if rank == 1:
            optimizer.state_dict()
        if iteration > 5:
            assert bps.push_pull(torch.tensor([3.0 + rank]), name="loss") == 3.5
    optimizer.finish()


def refused_types() -> None:
    try:
        bps.push_pull(torch.ones(4, dtype=torch.int16), average=False, name="short")
    except ValueError as error:
        assert "do not send torch.int16" in str(error)  # noqa: PT017
    else:
        raise AssertionError("it was sent")
    assert bps.push_pull(torch.ones(1, dtype=torch.int64), average=False, name="long") == 2


def main() -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    refused_types()
    messages(rank)
    two_optimizers(rank)
    unsharding(rank)
    delayed_averages(rank, Path(json.loads(sys.argv[1])["out"]))


if __name__ == "__main__":
    main()
