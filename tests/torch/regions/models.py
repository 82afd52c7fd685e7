"""Small models for tests of regions."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """A residual block with dropout-free layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, 2 * width)
        self.outer = nn.Linear(2 * width, width)

    def forward(self, data: Tensor, scale: Tensor | None = None) -> Tensor:
        scaled = data if scale is None else data * scale
        added: Tensor = data + self.outer(torch.relu(self.inner(scaled)))
        return added


class Tower(nn.Module):
    """Layers before and behind blocks, which all get the same second input."""

    def __init__(self, width: int = 8, blocks: int = 4) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.last = nn.Linear(width, 1)
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, data: Tensor) -> Tensor:
        data = self.first(data)
        for block in self.blocks:
            data = block(data, self.scale)
        output: Tensor = self.last(data)
        return output


def convolutions() -> nn.Sequential:
    """Stages of small blocks, as in a residual network, with layers that have no parameters."""

    def block() -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())

    stages = nn.Sequential(nn.Sequential(block(), block()), nn.Sequential(block(), block()))
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.ReLU(),
        stages,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 2),
    )
