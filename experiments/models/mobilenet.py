"""A MobileNet-like network: inverted residual blocks, and so many small tensors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

IMAGE = 32
CLASSES = 100
EXPANSION = 4
STAGES = ((24, 2, 1), (48, 3, 2), (96, 4, 2), (160, 3, 1), (256, 3, 2))
"""Width, number of blocks, stride of the first block."""


class Block(nn.Module):
    """Widens by a 1x1 convolution, filters each channel alone, narrows by another one."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        hidden = inputs * EXPANSION
        self.adds = stride == 1 and inputs == outputs
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, hidden, 1, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU6(inplace=True),
            nn.Conv2d(hidden, hidden, 3, stride, padding=1, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU6(inplace=True),
            nn.Conv2d(hidden, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Images of shape (batch, inputs, height, width) to (batch, outputs, ...)."""
        y: Tensor = self.layers(x)
        return x + y if self.adds else y


class MobileNet(nn.Module):
    """Classifies images."""

    def __init__(self) -> None:
        super().__init__()
        inputs = STAGES[0][0]
        self.stem = nn.Sequential(
            nn.Conv2d(3, inputs, 3, padding=1, bias=False), nn.BatchNorm2d(inputs), nn.ReLU6(True)
        )
        blocks = []
        for width, count, stride in STAGES:
            for number in range(count):
                blocks.append(Block(inputs, width, 1 if number else stride))
                inputs = width
        self.blocks = nn.Sequential(*blocks)
        self.last = nn.Sequential(
            nn.Conv2d(inputs, 4 * inputs, 1, bias=False), nn.BatchNorm2d(4 * inputs), nn.ReLU6(True)
        )
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(4 * inputs, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Images of shape (batch, 3, height, width) to logits."""
        features = self.last(self.blocks(self.stem(images)))
        logits: Tensor = self.head(self.pool(features).flatten(1))
        return logits


def make() -> nn.Module:
    """The model."""
    return MobileNet()


def draw(size: int, lot: torch.Generator) -> tuple[Tensor, ...]:
    """A random batch: the model's input, and the right classes."""
    images = torch.randn(size, 3, IMAGE, IMAGE, generator=lot)
    return images, torch.randint(CLASSES, (size,), generator=lot)
