"""A DenseNet-like network: every layer sees what all layers of its block before it made."""

from __future__ import annotations

import torch
from torch import Tensor, nn

IMAGE = 32
CLASSES = 100
GROWTH = 32
BLOCKS = (6, 12, 16)
"""Layers of each block."""


class Layer(nn.Module):
    """Adds ``GROWTH`` channels to those that it is given."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.BatchNorm2d(inputs),
            nn.ReLU(),
            nn.Conv2d(inputs, 4 * GROWTH, 1, bias=False),
            nn.BatchNorm2d(4 * GROWTH),
            nn.ReLU(),
            nn.Conv2d(4 * GROWTH, GROWTH, 3, padding=1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Images of shape (batch, inputs, height, width) to (batch, inputs + GROWTH, ...)."""
        return torch.cat([x, self.layers(x)], dim=1)


class DenseNet(nn.Module):
    """Classifies images."""

    def __init__(self) -> None:
        super().__init__()
        channels = 2 * GROWTH
        layers: list[nn.Module] = [nn.Conv2d(3, channels, 3, stride=2, padding=1, bias=False)]
        for number, count in enumerate(BLOCKS):
            if number:
                layers += [
                    nn.BatchNorm2d(channels),
                    nn.ReLU(),
                    nn.Conv2d(channels, channels // 2, 1, bias=False),
                    nn.AvgPool2d(2),
                ]
                channels //= 2
            for _ in range(count):
                layers.append(Layer(channels))
                channels += GROWTH
        self.features = nn.Sequential(*layers, nn.BatchNorm2d(channels), nn.ReLU())
        self.head = nn.Linear(channels, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Images of shape (batch, 3, height, width) to logits."""
        logits: Tensor = self.head(self.features(images).mean((2, 3)))
        return logits


def make() -> nn.Module:
    """The model."""
    return DenseNet()


def draw(size: int, lot: torch.Generator) -> tuple[Tensor, ...]:
    """A random batch: the model's input, and the right classes."""
    images = torch.randn(size, 3, IMAGE, IMAGE, generator=lot)
    return images, torch.randint(CLASSES, (size,), generator=lot)
