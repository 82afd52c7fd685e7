"""A residual network: stages of basic blocks, each of two convolutions (He et al., 2015)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

IMAGE = 32
CLASSES = 100
WIDTHS = (48, 96, 192, 384)
DEPTH = 2
"""Blocks of a stage."""


class Block(nn.Module):
    """Two convolutions, and the input added to what they make."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Images of shape (batch, inputs, height, width) to (batch, outputs, ...)."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        result: Tensor = self.relu(y + self.shortcut(x))
        return result


class ResNet(nn.Module):
    """Classifies images."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, WIDTHS[0], 3, padding=1, bias=False),
            nn.BatchNorm2d(WIDTHS[0]),
            nn.ReLU(inplace=True),
        )
        blocks = []
        inputs = WIDTHS[0]
        for stage, width in enumerate(WIDTHS):
            for number in range(DEPTH):
                blocks.append(Block(inputs, width, 2 if stage and not number else 1))
                inputs = width
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(inputs, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Images of shape (batch, 3, height, width) to logits."""
        logits: Tensor = self.head(self.pool(self.blocks(self.stem(images))).flatten(1))
        return logits


def make() -> nn.Module:
    """The model."""
    return ResNet()


def draw(size: int, lot: torch.Generator) -> tuple[Tensor, ...]:
    """A random batch: the model's input, and the right classes."""
    images = torch.randn(size, 3, IMAGE, IMAGE, generator=lot)
    return images, torch.randint(CLASSES, (size,), generator=lot)
