"""A rank that is slow at random places: ``skewed_worker.py {"seeds": N}``.

For each seed a network, a runtime and a rule of groups, the same on all ranks; and pauses in
forward, backward, between them and after steps, each rank's own, now and then much longer ones.
Trains until groups are final, and fails where ranks have other parameters or groups than rank 0.
"""

from __future__ import annotations

import json
import random
import sys
import time
from typing import Any

import torch
from torch import Tensor, distributed, nn

from byteprophet.torch import DistributedOptimizer
from byteprophet.torch.optimizer import is_settled

LONGEST = 400  # iterations; a search takes 110


class Pauses:
    """Of one rank, which is slower than others by a factor that changes as well."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)
        self._slowness_s = 0.0005

    def take(self) -> None:
        if self._random.random() < 0.05:
            self._slowness_s = self._random.choice((0.0, 0.0002, 0.001))
        time.sleep(self._random.random() * self._slowness_s)
        if self._random.random() < 0.002:
            time.sleep(0.05)


class Paused(torch.autograd.Function):
    """Nothing but a pause, in forward and in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, pauses: Pauses) -> Tensor:
        ctx.pauses = pauses
        pauses.take()
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.pauses.take()
        return gradient, None


def train(seed: int, rank: int) -> None:
    common, pauses = random.Random(seed), Pauses(f"{seed} {rank}")
    sync = common.choice(("allreduce", "dear", "dear-planned"))
    fusion: Any = ("tuned", "planned", "planned", "near-layer", 3000)[seed % 5]
    torch.manual_seed(seed)
    layers = [nn.Linear(16, 16) for _ in range(common.randint(2, 9))]
    model = nn.Sequential(*layers)
    optimizer: Any = torch.optim.Adam(model.parameters(), lr=1e-3)
    optimizer = DistributedOptimizer(optimizer, model=model, sync=sync, fusion=fusion)
    for iteration in range(LONGEST):
        x = torch.randn(4, 16, generator=torch.Generator().manual_seed(1000 * rank + iteration))
        for layer in layers:
            x = torch.tanh(layer(Paused.apply(x, pauses)))
        optimizer.zero_grad()
        pauses.take()
        x.square().mean().backward()
        pauses.take()
        optimizer.step()
        pauses.take()
        if iteration >= 24 and is_settled(optimizer):
            break
    assert is_settled(optimizer), (seed, sync, fusion)
    layouts = optimizer._front.synchroniser.bucketing.layouts
    groups = [(bucket.parameters, bucket.whole) for bucket in layouts]
    mine = (seed, iteration, groups, [p.tolist() for p in model.parameters()])
    everybodys: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(everybodys, mine)
    assert all(other == everybodys[0] for other in everybodys), (seed, sync, fusion)


def main() -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    for seed in range(json.loads(sys.argv[1])["seeds"]):
        train(seed, distributed.get_rank())


if __name__ == "__main__":
    main()
