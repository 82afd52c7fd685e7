"""A worker of the soak: trains for a given time with random pauses and checks every parameter.

    soak_worker.py SECONDS SEED

The loss is linear in the parameters, so gradients are numbers chosen here: on rank ``r``, that of
layer ``k`` in iteration ``t`` is ``(b + (2 r - (ranks - 1)) s) * pattern`` with whole numbers ``b``
and ``s`` drawn for (t, k). The average over the ranks is ``b * pattern``, sums and updates are
exact in float32, and the parameters are known after every iteration. A gradient that is lost, comes
twice or belongs to another iteration shows, and stays.

Rank 0 decides when the time is over; the others learn it with the gradients, by one more tensor.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn

import byteprophet.torch as bps
from byteprophet.whole_files import write_whole

# 2.6 MB: biases, small and large layers, several partitions of the largest.
SIZES = (64, 10_000, 256, 100_000, 1, 30_000, 1_000, 400_000, 512, 90_000, 7, 20_000)
RATE = 1 / 1024  # a power of two, and sums far below 2^24 of it: updates do not round
CHECK_EVERY = 100  # iterations


class Layer(nn.Module):
    """One parameter; its share of the loss is its product with ``gradient``."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self.pattern: Tensor = (torch.arange(size) % 3 + 1).to(torch.float32)

    def forward(self, factor: float) -> Tensor:
        """The share of the loss."""
        return (self.weight * (self.pattern * factor)).sum()


def average_and_spread(seed: int, iteration: int, layer: int) -> tuple[int, int]:
    """``b`` and ``s`` above."""
    drawn = random.Random(f"{seed}/{iteration}/{layer}")
    return drawn.randint(-8, 8), drawn.randint(1, 8)


def check(layers: list[Layer], totals: list[int], iteration: int) -> None:
    """Every element of every parameter, bit for bit."""
    for number, (layer, total) in enumerate(zip(layers, totals, strict=True)):
        wrong = int((layer.weight.detach() != layer.pattern * (-total * RATE)).sum())
        assert wrong == 0, f"after iteration {iteration}, layer {number}: {wrong} wrong elements"


def pause(own: random.Random) -> None:
    """Mostly none, often a few milliseconds, now and then half a second."""
    chance = own.random()
    if chance < 0.003:
        time.sleep(0.5)
    elif chance < 0.1:
        time.sleep(own.random() * 0.02)


def main() -> None:
    """Train until the time is over, then write the result."""
    duration_s, seed = float(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    bps.init()
    rank, size = bps.rank(), bps.size()
    own = random.Random(1000 * seed + rank)
    layers = [Layer(elements) for elements in SIZES]
    model = nn.ModuleList(layers)
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=RATE), named_parameters=model.named_parameters()
    )
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    totals = [0] * len(layers)
    over = torch.zeros(1)
    iteration = 0
    print("soak: begin", flush=True)
    deadline_s = time.monotonic() + duration_s
    while not over.item():
        over.fill_(float(rank == 0 and time.monotonic() > deadline_s))
        handle = bps.push_pull_async_inplace(over, average=False, name="soak over")
        optimizer.zero_grad()
        losses = []
        for number, layer in enumerate(layers):
            pause(own)
            average, spread = average_and_spread(seed, iteration, number)
            totals[number] += average
            losses.append(layer(float(average + (2 * rank - (size - 1)) * spread)))
        torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        iteration += 1
        if iteration % CHECK_EVERY == 0:
            model.eval()  # waits for updates under way
            check(layers, totals, iteration)
        bps.synchronize(handle)
    model.eval()
    check(layers, totals, iteration)
    print("soak: end", flush=True)
    folder = Path(os.environ["BYTEPROPHET_RUN"]) / "results"
    result = {
        "rank": rank,
        "iterations": iteration,
        "scheduled_partitions": bps.scheduled_partitions(),
    }
    write_whole(folder / f"worker-{rank}.json", json.dumps(result))


if __name__ == "__main__":
    main()
