"""ResNet-50 (He et al. 2015) and VGG-19 (Simonyan and Zisserman 2014), traced like a user's model.

ResNet-50 has its stride in the 3 x 3 convolutions, as torchvision's has.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

_CLASSES = 1000
_RESNET = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
"""Of each stage: the width, the number of blocks, and the stride of the first one."""
_VGG = (64, 64, 0, 128, 128, 0, *(256,) * 4, 0, *(512,) * 4, 0, *(512,) * 4, 0)
"""Output channels of convolutions; 0: pooling."""


class _Bottleneck(nn.Module):
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.reduce = _convolution(channels, width, 1)
        self.spatial = _convolution(width, width, 3, stride)
        self.expand = _convolution(width, 4 * width, 1, relu=False)
        changes = stride > 1 or channels != 4 * width
        self.shortcut = (
            _convolution(channels, 4 * width, 1, stride, relu=False) if changes else nn.Identity()
        )
        self.relu = nn.ReLU()

    def forward(self, images: Tensor) -> Tensor:
        branch = self.expand(self.spatial(self.reduce(images)))
        summed: Tensor = self.relu(branch + self.shortcut(images))
        return summed


def _convolution(
    channels: int, outputs: int, kernel: int, stride: int = 1, *, relu: bool = True
) -> nn.Sequential:
    parts: list[nn.Module] = [
        nn.Conv2d(channels, outputs, kernel, stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(outputs),
    ]
    return nn.Sequential(*parts, *([nn.ReLU()] if relu else []))


def resnet50(batch: int) -> tuple[nn.Module, tuple[Any, ...]]:
    """ResNet-50, and a batch of images."""
    blocks: list[nn.Module] = [_convolution(3, 64, 7, 2), nn.MaxPool2d(3, 2, padding=1)]
    channels = 64
    for width, count, stride in _RESNET:
        for at in range(count):
            blocks.append(_Bottleneck(channels, width, stride if at == 0 else 1))
            channels = 4 * width
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, _CLASSES))
    return nn.Sequential(*blocks, *head), (torch.zeros(batch, 3, 224, 224),)


def vgg19(batch: int) -> tuple[nn.Module, tuple[Any, ...]]:
    """VGG-19, and a batch of images."""
    parts: list[nn.Module] = []
    channels = 3
    for outputs in _VGG:
        if outputs:
            parts += [nn.Conv2d(channels, outputs, 3, padding=1), nn.ReLU()]
            channels = outputs
        else:
            parts.append(nn.MaxPool2d(2))
    parts.append(nn.Flatten())
    for inputs, outputs in ((512 * 7 * 7, 4096), (4096, 4096)):
        parts += [nn.Linear(inputs, outputs), nn.ReLU(), nn.Dropout()]
    parts.append(nn.Linear(4096, _CLASSES))
    return nn.Sequential(*parts), (torch.zeros(batch, 3, 224, 224),)
