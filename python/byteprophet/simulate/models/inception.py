"""Inception-v3 (Szegedy et al. 2015) as torchvision has it, with its auxiliary classifier."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

_CLASSES = 1000
_FACTORISED = (128, 160, 160, 192)
"""Channels between the 1 x 7 and 7 x 1 convolutions of the middle blocks."""


def _convolution(
    channels: int,
    outputs: int,
    kernel: int | tuple[int, int],
    stride: int = 1,
    padding: int | tuple[int, int] = 0,
) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, outputs, kernel, stride, padding, bias=False),
        nn.BatchNorm2d(outputs, eps=0.001),
        nn.ReLU(),
    )


class _Branches(nn.Module):
    """Branches side by side, whose outputs are concatenated."""

    def __init__(self, **branches: nn.Module) -> None:
        super().__init__()
        for name, branch in branches.items():
            self.add_module(name, branch)

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([branch(images) for branch in self.children()], 1)


def _pooled(channels: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.AvgPool2d(3, 1, 1), _convolution(channels, outputs, 1))


def _block_a(channels: int, pooled: int) -> _Branches:
    return _Branches(
        one=_convolution(channels, 64, 1),
        five=nn.Sequential(_convolution(channels, 48, 1), _convolution(48, 64, 5, padding=2)),
        three=nn.Sequential(
            _convolution(channels, 64, 1),
            _convolution(64, 96, 3, padding=1),
            _convolution(96, 96, 3, padding=1),
        ),
        pool=_pooled(channels, pooled),
    )


def _block_b(channels: int) -> _Branches:
    return _Branches(
        three=_convolution(channels, 384, 3, 2),
        twice=nn.Sequential(
            _convolution(channels, 64, 1),
            _convolution(64, 96, 3, padding=1),
            _convolution(96, 96, 3, 2),
        ),
        pool=nn.MaxPool2d(3, 2),
    )


def _block_c(width: int) -> _Branches:
    row: dict[str, Any] = {"kernel": (1, 7), "padding": (0, 3)}
    column: dict[str, Any] = {"kernel": (7, 1), "padding": (3, 0)}
    return _Branches(
        one=_convolution(768, 192, 1),
        seven=nn.Sequential(
            _convolution(768, width, 1),
            _convolution(width, width, **row),
            _convolution(width, 192, **column),
        ),
        twice=nn.Sequential(
            _convolution(768, width, 1),
            _convolution(width, width, **column),
            _convolution(width, width, **row),
            _convolution(width, width, **column),
            _convolution(width, 192, **row),
        ),
        pool=_pooled(768, 192),
    )


def _block_d() -> _Branches:
    return _Branches(
        three=nn.Sequential(_convolution(768, 192, 1), _convolution(192, 320, 3, 2)),
        seven=nn.Sequential(
            _convolution(768, 192, 1),
            _convolution(192, 192, (1, 7), padding=(0, 3)),
            _convolution(192, 192, (7, 1), padding=(3, 0)),
            _convolution(192, 192, 3, 2),
        ),
        pool=nn.MaxPool2d(3, 2),
    )


def _fork() -> _Branches:
    return _Branches(
        row=_convolution(384, 384, (1, 3), padding=(0, 1)),
        column=_convolution(384, 384, (3, 1), padding=(1, 0)),
    )


def _block_e(channels: int) -> _Branches:
    return _Branches(
        one=_convolution(channels, 320, 1),
        three=nn.Sequential(_convolution(channels, 384, 1), _fork()),
        twice=nn.Sequential(
            _convolution(channels, 448, 1), _convolution(448, 384, 3, padding=1), _fork()
        ),
        pool=_pooled(channels, 192),
    )


class _Inception(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            _convolution(3, 32, 3, 2),
            _convolution(32, 32, 3),
            _convolution(32, 64, 3, padding=1),
            nn.MaxPool2d(3, 2),
            _convolution(64, 80, 1),
            _convolution(80, 192, 3),
            nn.MaxPool2d(3, 2),
        )
        self.fine = nn.Sequential(_block_a(192, 32), _block_a(256, 64), _block_a(288, 64))
        self.middle = nn.Sequential(_block_b(288), *(_block_c(width) for width in _FACTORISED))
        self.auxiliary = nn.Sequential(
            nn.AvgPool2d(5, 3),
            _convolution(768, 128, 1),
            _convolution(128, 768, 5),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(768, _CLASSES),
        )
        self.coarse = nn.Sequential(_block_d(), _block_e(1280), _block_e(2048))
        self.head = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Dropout(), nn.Flatten(), nn.Linear(2048, _CLASSES)
        )

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        middle = self.middle(self.fine(self.stem(images)))
        return self.head(self.coarse(middle)), self.auxiliary(middle)


def inception_v3(batch: int) -> tuple[nn.Module, tuple[Any, ...]]:
    """Inception-v3, and a batch of images."""
    return _Inception(), (torch.zeros(batch, 3, 299, 299),)
