"""DenseNet-201 on 224x224 images (Huang et al. 2017).

604 tensors, 20,013,928 parameters, 4.29 billion multiply-adds per image, with torchvision's names.
Many small tensors: the opposite of VGG.
"""

from __future__ import annotations

from byteprophet.workload.networks.layers import Parameter, convolution, linear, normalisation

_BLOCKS = ((6, 56), (12, 28), (48, 14), (32, 7))
"""Layers and side of each dense block."""

_GROWTH, _BOTTLENECK = 32, 128
"""Channels that a layer adds, and those between its two convolutions."""


def densenet201() -> list[Parameter]:
    """The parameters in forward order."""
    parameters = convolution("features.conv0", 3, 64, 7, 112)
    parameters += normalisation("features.norm0", 64, 112 * 112)
    channels = 64
    for number, (layers, side) in enumerate(_BLOCKS, start=1):
        for layer in range(1, layers + 1):
            name = f"features.denseblock{number}.denselayer{layer}"
            parameters += _dense_layer(name, channels, side)
            channels += _GROWTH
        if number < len(_BLOCKS):
            name = f"features.transition{number}"
            parameters += normalisation(f"{name}.norm", channels, side * side)
            parameters += convolution(f"{name}.conv", channels, channels // 2, 1, side)
            channels //= 2
    parameters += normalisation("features.norm5", channels, 7 * 7)
    return parameters + linear("classifier", channels, 1000)


def _dense_layer(name: str, channels: int, side: int) -> list[Parameter]:
    return [
        *normalisation(f"{name}.norm1", channels, side * side),
        *convolution(f"{name}.conv1", channels, _BOTTLENECK, 1, side),
        *normalisation(f"{name}.norm2", _BOTTLENECK, side * side),
        *convolution(f"{name}.conv2", _BOTTLENECK, _GROWTH, 3, side),
    ]
