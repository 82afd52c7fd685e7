"""A ConvNeXt-like network: depthwise 7x7 convolutions, layer norms, inverted bottlenecks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

IMAGE = 32
CLASSES = 100
STAGES = ((48, 2), (96, 2), (192, 4), (384, 2))
"""Width and number of blocks."""


class Block(nn.Module):
    """A depthwise convolution, then a network of two layers on each pixel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.scale = nn.Parameter(torch.full((width,), 1e-2))

    def forward(self, x: Tensor) -> Tensor:
        """Images of shape (batch, width, height, width), as is the result."""
        y = self.depthwise(x).permute(0, 2, 3, 1)
        y = self.scale * self.mlp(self.norm(y))
        result: Tensor = x + y.permute(0, 3, 1, 2)
        return result


class ConvNeXt(nn.Module):
    """Classifies images."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, STAGES[0][0], 2, stride=2)]
        inputs = STAGES[0][0]
        for width, count in STAGES:
            if width != inputs:
                layers += [nn.GroupNorm(1, inputs), nn.Conv2d(inputs, width, 2, stride=2)]
            layers += [Block(width) for _ in range(count)]
            inputs = width
        self.layers = nn.Sequential(*layers)
        self.norm = nn.LayerNorm(inputs)
        self.head = nn.Linear(inputs, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Images of shape (batch, 3, height, width) to logits."""
        logits: Tensor = self.head(self.norm(self.layers(images).mean((2, 3))))
        return logits


def make() -> nn.Module:
    """The model."""
    return ConvNeXt()


def draw(size: int, lot: torch.Generator) -> tuple[Tensor, ...]:
    """A random batch: the model's input, and the right classes."""
    images = torch.randn(size, 3, IMAGE, IMAGE, generator=lot)
    return images, torch.randint(CLASSES, (size,), generator=lot)
