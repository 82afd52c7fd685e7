"""The model of the digits experiment: a small ResNet for pictures of 8 by 8 pixels.

Three stages of two residual blocks, 48, 96 and 192 channels wide: 1.6 million parameters in 47
tensors, 6.2 MB per exchange. Like large ResNets, it spends most computation in the first layers and
keeps most parameters in the last ones.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

CLASSES = 10
WIDTHS = (48, 96, 192)
BLOCKS_PER_STAGE = 2


class Block(nn.Module):
    """Two convolutions with batch norm, and a shortcut around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut.append(nn.Conv2d(inputs, outputs, 1, stride, bias=False))
            self.shortcut.append(nn.BatchNorm2d(outputs))

    def forward(self, images: Tensor) -> Tensor:
        """``(batch, inputs, h, w)`` to ``(batch, outputs, h / stride, w / stride)``."""
        hidden = torch.relu(self.norm1(self.conv1(images)))
        return torch.relu(self.norm2(self.conv2(hidden)) + self.shortcut(images))


class ResNet(nn.Module):
    """``(batch, 1, 8, 8)`` to ``(batch, 10)`` logits."""

    def __init__(self, widths: tuple[int, ...] = WIDTHS) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, widths[0], 3, padding=1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU()
        )
        blocks, inputs = [], widths[0]
        for stage, outputs in enumerate(widths):
            for number in range(BLOCKS_PER_STAGE):
                blocks.append(Block(inputs, outputs, stride=2 if stage and not number else 1))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Linear(inputs, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of ``images``."""
        features: Tensor = self.blocks(self.stem(images))
        logits: Tensor = self.classifier(features.mean((2, 3)))
        return logits
