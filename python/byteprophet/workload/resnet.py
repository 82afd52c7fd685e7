"""ResNet-50 on 224x224 images (He et al. 2016).

161 tensors, 25,557,032 parameters, 4.09 billion multiply-adds per image, with torchvision's names
and its placement of the stride in the 3x3 convolution.
"""

from __future__ import annotations

from byteprophet.workload.layers import Parameter, convolution, linear, normalisation

_STAGES = ((3, 64, 56), (4, 128, 28), (6, 256, 14), (3, 512, 7))
"""Blocks, width and output side of each stage."""

_EXPANSION = 4


def resnet50() -> list[Parameter]:
    """The parameters in forward order, which is torchvision's order of registration."""
    parameters = _convolution_norm("conv1", "bn1", 3, 64, 7, 112)
    channels, side = 64, 56
    for stage, (blocks, width, out_side) in enumerate(_STAGES, start=1):
        for block in range(blocks):
            parameters += _bottleneck(f"layer{stage}.{block}", channels, width, side, out_side)
            channels, side = _EXPANSION * width, out_side
    return parameters + linear("fc", channels, 1000)


def _bottleneck(name: str, channels: int, width: int, side: int, out_side: int) -> list[Parameter]:
    wide = _EXPANSION * width
    parameters = [
        *_convolution_norm(f"{name}.conv1", f"{name}.bn1", channels, width, 1, side),
        *_convolution_norm(f"{name}.conv2", f"{name}.bn2", width, width, 3, out_side),
        *_convolution_norm(f"{name}.conv3", f"{name}.bn3", width, wide, 1, out_side),
    ]
    if channels != wide:
        shortcut = f"{name}.downsample"
        parameters += _convolution_norm(
            f"{shortcut}.0", f"{shortcut}.1", channels, wide, 1, out_side
        )
    return parameters


def _convolution_norm(
    name: str, norm: str, inputs: int, outputs: int, kernel: int, out_side: int
) -> list[Parameter]:
    return [
        *convolution(name, inputs, outputs, kernel, out_side),
        *normalisation(norm, outputs, out_side * out_side),
    ]
