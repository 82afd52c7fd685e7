"""A rank of a job with several local ranks per worker: checks sums, trains, writes what came out.

Sums are of whole numbers where they must be exact, so that the order of addition does not matter.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

ITERATIONS = 6


class Model(nn.Module):
    """Sizes that no number of ranks divides, one element, and more than one partition."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(17, 131)
        self.scale = nn.Parameter(torch.ones(1))
        self.wide = nn.Linear(131, 301)
        self.last = nn.Linear(301, 5, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.wide(torch.tanh(self.first(x)) * self.scale)))


def loss_of(model: nn.Module, rank: int, iteration: int) -> Tensor:
    """The loss on a batch of this rank's own."""
    generator = torch.Generator().manual_seed(1000 * rank + iteration)
    x = torch.randn(8, 17, generator=generator, dtype=torch.float64)
    return functional.mse_loss(model(x), x[:, :5].sin())


def make_model(seed: int) -> Model:
    """The model in double precision, so that a different order of addition shows little."""
    torch.manual_seed(seed)
    return Model().double()


def train_alone(ranks: int) -> list[Tensor]:
    """What ``ranks`` ranks must come to, computed by one process."""
    model = make_model(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for iteration in range(ITERATIONS):
        optimizer.zero_grad()
        losses = [loss_of(model, rank, iteration) for rank in range(ranks)]
        (torch.stack(losses).sum() / ranks).backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def train(bps: Any) -> list[Tensor]:
    """As ``train_alone``, by all ranks; each starts with other parameters than rank 0's."""
    model = make_model(bps.rank())
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    for iteration in range(ITERATIONS):
        optimizer.zero_grad()
        loss_of(model, bps.rank(), iteration).backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def sums(bps: Any) -> None:
    """Every type, and sizes around the number of ranks; sums and averages, in place and not."""
    rank, size = bps.rank(), bps.size()
    total = size * (size + 1) // 2
    types = [torch.uint8, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64]
    handles = []
    for number in [1, 2, 3, 5, 7, 1021]:
        for kind in types:
            value = torch.arange(number).remainder(5).add(1).mul(rank + 1).to(kind)
            name = f"sum.{number}.{kind}"
            handle = bps.byteps_push_pull(value, average=False, name=name)
            handles.append((handle, value, number, kind))
    for handle, value, number, kind in handles:
        bps.synchronize(handle)
        expected = torch.arange(number).remainder(5).add(1).mul(total).to(kind)
        assert torch.equal(value, expected), (number, kind, value, expected)
    value = torch.full((1001,), float(rank))
    assert torch.equal(bps.push_pull(value, name="mean"), torch.full((1001,), (size - 1) / 2))
    assert torch.equal(value, torch.full((1001,), float(rank)))
    # Several partitions, and the same tensor many times.
    big = torch.zeros(300_001)
    for iteration in range(10):
        big.fill_(float(rank + iteration))
        bps.synchronize(bps.byteps_push_pull(big, average=False, name="big"))
        assert torch.equal(big, torch.full_like(big, size * (size - 1) / 2 + size * iteration))


def broadcasts(bps: Any) -> None:
    """From every rank, whether it is a local root or not."""
    for root in range(bps.size()):
        tensors = {
            "half": torch.full((3,), float(bps.rank()), dtype=torch.float16),
            "scalar": torch.tensor(float(bps.rank())),
        }
        bps.broadcast_parameters(tensors, root_rank=root)
        assert torch.equal(tensors["half"], torch.full((3,), float(root), dtype=torch.float16))
        assert float(tensors["scalar"]) == root


def digest(tensors: list[Tensor]) -> str:
    """A checksum over the bytes of ``tensors``."""
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(tensor.numpy().tobytes())
    return total.hexdigest()


def main() -> None:
    """``local_ranks_worker.py FRONT``: stock (BytePS as shipped) or auto (what is loaded)."""
    import byteps.torch as bps

    bps.init()
    sums(bps)
    broadcasts(bps)
    parameters = train(bps)
    reference = train_alone(bps.size())
    scheduled = -1
    if sys.argv[1] == "auto":
        from byteprophet.torch import scheduled_partitions

        scheduled = scheduled_partitions()
    record = {
        "rank": bps.rank(),
        "local_rank": bps.local_rank(),
        "digest": digest(parameters),
        "error": max(
            float((ours - alone).abs().max())
            for ours, alone in zip(parameters, reference, strict=True)
        ),
        "scheduled": scheduled,
    }
    folder = Path(os.environ["BYTEPROPHET_RUN"]) / "results"
    (folder / f"worker-{bps.rank()}.json").write_text(json.dumps(record))


if __name__ == "__main__":
    main()
