"""A VGG-like network: plain convolutions, then a few very large linear layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

IMAGE = 32
CLASSES = 100
WIDTHS = (32, 64, 128, 256)
HIDDEN = 1536


class VGG(nn.Module):
    """Classifies images. Two linear layers have most of its parameters."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for width in WIDTHS:
            for _ in range(2):
                layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU(inplace=True)]
                inputs = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        pixels = (IMAGE >> len(WIDTHS)) ** 2
        self.classifier = nn.Sequential(
            nn.Linear(inputs * pixels, HIDDEN),
            nn.ReLU(inplace=True),
            nn.Linear(HIDDEN, HIDDEN),
            nn.ReLU(inplace=True),
            nn.Linear(HIDDEN, CLASSES),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Images of shape (batch, 3, height, width) to logits."""
        logits: Tensor = self.classifier(self.features(images).flatten(1))
        return logits


def make() -> nn.Module:
    """The model."""
    return VGG()


def draw(size: int, lot: torch.Generator) -> tuple[Tensor, ...]:
    """A random batch: the model's input, and the right classes."""
    images = torch.randn(size, 3, IMAGE, IMAGE, generator=lot)
    return images, torch.randint(CLASSES, (size,), generator=lot)
