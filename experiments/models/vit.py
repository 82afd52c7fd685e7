"""A vision transformer: patches as tokens, pre-norm encoder blocks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

IMAGE = 32
PATCH = 4
CLASSES = 100
WIDTH = 256
HEADS = 4
DEPTH = 6


class ViT(nn.Module):
    """Classifies images."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, stride=PATCH)
        self.class_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.positions = nn.Parameter(0.02 * torch.randn(1, (IMAGE // PATCH) ** 2 + 1, WIDTH))
        self.blocks = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(
                    WIDTH,
                    HEADS,
                    4 * WIDTH,
                    dropout=0.0,
                    activation="gelu",
                    batch_first=True,
                    norm_first=True,
                )
                for _ in range(DEPTH)
            )
        )
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Images of shape (batch, 3, height, width) to logits."""
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        logits: Tensor = self.head(self.norm(self.blocks(x)[:, 0]))
        return logits


def make() -> nn.Module:
    """The model."""
    return ViT()


def draw(size: int, lot: torch.Generator) -> tuple[Tensor, ...]:
    """A random batch: the model's input, and the right classes."""
    images = torch.randn(size, 3, IMAGE, IMAGE, generator=lot)
    return images, torch.randint(CLASSES, (size,), generator=lot)
