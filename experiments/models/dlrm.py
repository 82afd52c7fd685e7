"""A DLRM-like recommender: embedding tables, small networks, products of pairs of features.

The tables have dense gradients, so all of a table travels in every iteration.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

DENSE = 13
ROWS = (40_000, 20_000, 20_000, 10_000, 10_000, 4_000, 2_000, 1_000)
"""Of the embedding tables."""
WIDTH = 64
PER_BAG = 20
BOTTOM = (1024, 1024, WIDTH)
TOP = (2048, 1024, 2)


def layers(inputs: int, widths: tuple[int, ...]) -> nn.Sequential:
    """Linear layers with activations between them."""
    made: list[nn.Module] = []
    for width in widths:
        made += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*made[:-1])


class DLRM(nn.Module):
    """Says whether somebody clicks."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, WIDTH, mode="sum") for rows in ROWS)
        self.bottom = layers(DENSE, BOTTOM)
        features = len(ROWS) + 1
        self.top = layers(WIDTH + features * (features - 1) // 2, TOP)

    def forward(self, dense: Tensor, bags: Tensor) -> Tensor:
        """Features (batch, DENSE), and rows of each table (tables, batch, PER_BAG), to logits."""
        low = self.bottom(dense)
        features = torch.stack(
            [low, *(table(bag) for table, bag in zip(self.tables, bags, strict=True))], dim=1
        )
        products = features @ features.transpose(1, 2)
        first, second = torch.tril_indices(products.shape[1], products.shape[1], offset=-1)
        logits: Tensor = self.top(torch.cat([low, products[:, first, second]], dim=1))
        return logits


def make() -> nn.Module:
    """The model."""
    return DLRM()


def draw(size: int, lot: torch.Generator) -> tuple[Tensor, ...]:
    """A random batch: the model's inputs, and who clicked."""
    dense = torch.randn(size, DENSE, generator=lot)
    bags = torch.stack([torch.randint(rows, (size, PER_BAG), generator=lot) for rows in ROWS])
    return dense, bags, torch.randint(2, (size,), generator=lot)
