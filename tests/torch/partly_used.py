"""A network with a part that only some steps use, and its batches: what several workers train."""

from __future__ import annotations

import torch
from torch import Tensor, nn

STEPS, BATCH = 12, 8


class Net(nn.Module):
    """``sometimes`` takes part in every third step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(6, 20)
        self.second = nn.Linear(20, 20)
        self.sometimes = nn.Linear(20, 20)
        self.last = nn.Linear(20, 2)

    def forward(self, batch: Tensor, step: int) -> Tensor:
        hidden = self.second(self.first(batch).relu()).relu()
        if step % 3 == 0:
            hidden = hidden + self.sometimes(hidden)
        return self.last(hidden)


def batches(ranks: int) -> list[Tensor]:
    """Those of all ranks, by step."""
    lot = torch.Generator().manual_seed(5)
    return [torch.randn(ranks, BATCH, 6, generator=lot) for _ in range(STEPS)]


def loss(model: nn.Module, batch: Tensor, step: int) -> Tensor:
    return model(batch, step).square().mean()
