"""An MLP-Mixer-like network: linear layers across patches and across channels in turn."""

from __future__ import annotations

import torch
from torch import Tensor, nn

IMAGE = 32
PATCH = 4
CLASSES = 100
WIDTH = 320
PATCHES = (IMAGE // PATCH) ** 2
DEPTH = 7


class Block(nn.Module):
    """Mixes patches, then channels."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.across_patches = nn.Sequential(
            nn.Linear(PATCHES, 2 * PATCHES), nn.GELU(), nn.Linear(2 * PATCHES, PATCHES)
        )
        self.norm2 = nn.LayerNorm(WIDTH)
        self.across_channels = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Of shape (batch, patches, width), as is the result."""
        x = x + self.across_patches(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        result: Tensor = x + self.across_channels(self.norm2(x))
        return result


class Mixer(nn.Module):
    """Classifies images."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, stride=PATCH)
        self.blocks = nn.Sequential(*(Block() for _ in range(DEPTH)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Images of shape (batch, 3, height, width) to logits."""
        x = self.patches(images).flatten(2).transpose(1, 2)
        logits: Tensor = self.head(self.norm(self.blocks(x)).mean(1))
        return logits


def make() -> nn.Module:
    """The model."""
    return Mixer()


def draw(size: int, lot: torch.Generator) -> tuple[Tensor, ...]:
    """A random batch: the model's input, and the right classes."""
    images = torch.randn(size, 3, IMAGE, IMAGE, generator=lot)
    return images, torch.randint(CLASSES, (size,), generator=lot)
