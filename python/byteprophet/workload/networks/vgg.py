"""VGG-19 without batch normalisation on 224x224 images (Simonyan and Zisserman 2014).

38 tensors, 143,667,240 parameters, 19.6 billion multiply-adds per image, with torchvision's names.
"""

from __future__ import annotations

from byteprophet.workload.networks.layers import Parameter, convolution, linear

_STAGES = ((2, 64, 224), (2, 128, 112), (4, 256, 56), (4, 512, 28), (4, 512, 14))
"""Convolutions, channels and side of each stage; a pooling ends it."""


def vgg19() -> list[Parameter]:
    """The parameters in forward order."""
    parameters: list[Parameter] = []
    index = 0  # position in torchvision's ``features``: convolution, activation, ..., pooling
    inputs = 3
    for convolutions, channels, side in _STAGES:
        for _ in range(convolutions):
            parameters += convolution(f"features.{index}", inputs, channels, 3, side, bias=True)
            inputs = channels
            index += 2
        index += 1
    parameters += linear("classifier.0", 512 * 7 * 7, 4096)
    parameters += linear("classifier.3", 4096, 4096)
    return parameters + linear("classifier.6", 4096, 1000)
