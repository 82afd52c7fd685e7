"""A rank that trains a model of blocks: ``memory_worker.py SYNC STEPS``.

With the SYNC "torch", it is a script of DistributedDataParallel.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn

import byteprophet.torch as bps

WIDTH, BATCH, BLOCKS, CLASSES = 64, 256, 4, 32


class Block(nn.Module):
    """A residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, data: Tensor) -> Tensor:
        added: Tensor = data + self.narrow(nn.functional.gelu(self.wide(self.norm(data))))
        return added


class Network(nn.Module):
    """Blocks in a list, which the forward pass goes through."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, data: Tensor) -> Tensor:
        for block in self.blocks:
            data = block(data)
        result: Tensor = self.head(data)
        return result


def batch() -> tuple[Tensor, Tensor]:
    """Inputs and classes."""
    lot = torch.Generator().manual_seed(1)
    classes = torch.randint(0, CLASSES, (BATCH,), generator=lot)
    return torch.randn(BATCH, WIDTH, generator=lot), classes


def main(sync: str, steps: int) -> None:
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    network = Network()
    model: nn.Module = network
    optimizer: Any = torch.optim.Adam(network.parameters(), lr=1e-3)
    if sync == "torch":
        model = nn.parallel.DistributedDataParallel(network)
    else:
        optimizer = bps.DistributedOptimizer(optimizer, network.named_parameters(), sync=sync)
    data, classes = batch()
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(data), classes).backward()
        optimizer.step()
    bps.flush(optimizer)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
