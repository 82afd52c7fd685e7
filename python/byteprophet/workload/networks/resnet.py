"""ResNet-18, 50 and 152 on 224x224 images (He et al. 2016).

62, 161 and 467 tensors; 11,689,512, 25,557,032 and 60,192,808 parameters; 1.81, 4.09 and 11.5
billion multiply-adds per image. Names are torchvision's, and so is the placement of the stride in
a bottleneck's 3x3 convolution.
"""

from __future__ import annotations

from byteprophet.workload.networks.layers import Parameter, convolution, linear, normalisation

_STAGES = ((64, 56), (128, 28), (256, 14), (512, 7))
"""Width and output side of each stage."""


def resnet18() -> list[Parameter]:
    """The parameters in forward order, which is torchvision's order of registration."""
    return _resnet((2, 2, 2, 2), expansion=1)


def resnet50() -> list[Parameter]:
    """The parameters in forward order, which is torchvision's order of registration."""
    return _resnet((3, 4, 6, 3), expansion=4)


def resnet152() -> list[Parameter]:
    """The parameters in forward order, which is torchvision's order of registration."""
    return _resnet((3, 8, 36, 3), expansion=4)


def _resnet(blocks_per_stage: tuple[int, ...], expansion: int) -> list[Parameter]:
    """``expansion`` 1: blocks of two 3x3 convolutions; more: bottlenecks that widen so much."""
    parameters = _convolution_norm("conv1", "bn1", 3, 64, 7, 112)
    channels, side = 64, 56
    for stage, (blocks, (width, out_side)) in enumerate(
        zip(blocks_per_stage, _STAGES, strict=True), start=1
    ):
        for block in range(blocks):
            name, wide = f"layer{stage}.{block}", expansion * width
            if expansion == 1:
                parameters += _basic(name, channels, width, out_side)
            else:
                parameters += _bottleneck(name, channels, width, wide, side, out_side)
            if channels != wide:
                shortcut = f"{name}.downsample"
                parameters += _convolution_norm(
                    f"{shortcut}.0", f"{shortcut}.1", channels, wide, 1, out_side
                )
            channels, side = wide, out_side
    return parameters + linear("fc", channels, 1000)


def _basic(name: str, channels: int, width: int, out_side: int) -> list[Parameter]:
    return [
        *_convolution_norm(f"{name}.conv1", f"{name}.bn1", channels, width, 3, out_side),
        *_convolution_norm(f"{name}.conv2", f"{name}.bn2", width, width, 3, out_side),
    ]


def _bottleneck(
    name: str, channels: int, width: int, wide: int, side: int, out_side: int
) -> list[Parameter]:
    return [
        *_convolution_norm(f"{name}.conv1", f"{name}.bn1", channels, width, 1, side),
        *_convolution_norm(f"{name}.conv2", f"{name}.bn2", width, width, 3, out_side),
        *_convolution_norm(f"{name}.conv3", f"{name}.bn3", width, wide, 1, out_side),
    ]


def _convolution_norm(
    name: str, norm: str, inputs: int, outputs: int, kernel: int, out_side: int
) -> list[Parameter]:
    return [
        *convolution(name, inputs, outputs, kernel, out_side),
        *normalisation(norm, outputs, out_side * out_side),
    ]
