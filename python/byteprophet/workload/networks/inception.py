"""Inception-v3 (Szegedy et al. 2015) and Inception-v4 (Szegedy et al. 2016) on 299x299 images.

v3: 284 tensors, 23,834,568 parameters, 5.71 billion multiply-adds per image, with torchvision's
names and without the auxiliary classifier (with it, 27,161,264).
v4: 449 tensors, 42,679,816 parameters, 12.3 billion multiply-adds, with the names of timm.

A module's branches run one after the other, in the order of their listing.
"""

from __future__ import annotations

from byteprophet.workload.networks.layers import Parameter, convolution, linear, normalisation

Kernel = int | tuple[int, int]
Convolution = tuple[str, int, int, Kernel, int]
"""Name inside the module, channels in and out, kernel, side of the output."""


def inception_v3() -> list[Parameter]:
    """The parameters in forward order."""
    parameters = _module(
        "",
        ("Conv2d_1a_3x3", 3, 32, 3, 149),
        ("Conv2d_2a_3x3", 32, 32, 3, 147),
        ("Conv2d_2b_3x3", 32, 64, 3, 147),
        ("Conv2d_3b_1x1", 64, 80, 1, 73),
        ("Conv2d_4a_3x3", 80, 192, 3, 71),
    )
    for name, channels, pooled in (("5b", 192, 32), ("5c", 256, 64), ("5d", 288, 64)):
        parameters += _v3_a(f"Mixed_{name}.", channels, pooled)
    parameters += _module(
        "Mixed_6a.",
        ("branch3x3", 288, 384, 3, 17),
        ("branch3x3dbl_1", 288, 64, 1, 35),
        ("branch3x3dbl_2", 64, 96, 3, 35),
        ("branch3x3dbl_3", 96, 96, 3, 17),
    )
    for name, inner in (("6b", 128), ("6c", 160), ("6d", 160), ("6e", 192)):
        parameters += _v3_c(f"Mixed_{name}.", inner)
    parameters += _module(
        "Mixed_7a.",
        ("branch3x3_1", 768, 192, 1, 17),
        ("branch3x3_2", 192, 320, 3, 8),
        ("branch7x7x3_1", 768, 192, 1, 17),
        ("branch7x7x3_2", 192, 192, (1, 7), 17),
        ("branch7x7x3_3", 192, 192, (7, 1), 17),
        ("branch7x7x3_4", 192, 192, 3, 8),
    )
    for name, channels in (("7b", 1280), ("7c", 2048)):
        parameters += _v3_e(f"Mixed_{name}.", channels)
    return parameters + linear("fc", 2048, 1000)


def inception_v4() -> list[Parameter]:
    """The parameters in forward order."""
    parameters = _module(
        "features.",
        ("0", 3, 32, 3, 149),
        ("1", 32, 32, 3, 147),
        ("2", 32, 64, 3, 147),
        ("3.conv", 64, 96, 3, 73),
        ("4.branch0.0", 160, 64, 1, 73),
        ("4.branch0.1", 64, 96, 3, 71),
        ("4.branch1.0", 160, 64, 1, 73),
        ("4.branch1.1", 64, 64, (1, 7), 73),
        ("4.branch1.2", 64, 64, (7, 1), 73),
        ("4.branch1.3", 64, 96, 3, 71),
        ("5.conv", 192, 192, 3, 35),
    )
    for position in range(6, 10):
        parameters += _v4_a(f"features.{position}.")
    parameters += _module(
        "features.10.",
        ("branch0", 384, 384, 3, 17),
        ("branch1.0", 384, 192, 1, 35),
        ("branch1.1", 192, 224, 3, 35),
        ("branch1.2", 224, 256, 3, 17),
    )
    for position in range(11, 18):
        parameters += _v4_b(f"features.{position}.")
    parameters += _module(
        "features.18.",
        ("branch0.0", 1024, 192, 1, 17),
        ("branch0.1", 192, 192, 3, 8),
        ("branch1.0", 1024, 256, 1, 17),
        ("branch1.1", 256, 256, (1, 7), 17),
        ("branch1.2", 256, 320, (7, 1), 17),
        ("branch1.3", 320, 320, 3, 8),
    )
    for position in range(19, 22):
        parameters += _v4_c(f"features.{position}.")
    return parameters + linear("last_linear", 1536, 1000)


def _v3_a(name: str, channels: int, pooled: int) -> list[Parameter]:
    return _module(
        name,
        ("branch1x1", channels, 64, 1, 35),
        ("branch5x5_1", channels, 48, 1, 35),
        ("branch5x5_2", 48, 64, 5, 35),
        ("branch3x3dbl_1", channels, 64, 1, 35),
        ("branch3x3dbl_2", 64, 96, 3, 35),
        ("branch3x3dbl_3", 96, 96, 3, 35),
        ("branch_pool", channels, pooled, 1, 35),
    )


def _v3_c(name: str, inner: int) -> list[Parameter]:
    return _module(
        name,
        ("branch1x1", 768, 192, 1, 17),
        ("branch7x7_1", 768, inner, 1, 17),
        ("branch7x7_2", inner, inner, (1, 7), 17),
        ("branch7x7_3", inner, 192, (7, 1), 17),
        ("branch7x7dbl_1", 768, inner, 1, 17),
        ("branch7x7dbl_2", inner, inner, (7, 1), 17),
        ("branch7x7dbl_3", inner, inner, (1, 7), 17),
        ("branch7x7dbl_4", inner, inner, (7, 1), 17),
        ("branch7x7dbl_5", inner, 192, (1, 7), 17),
        ("branch_pool", 768, 192, 1, 17),
    )


def _v3_e(name: str, channels: int) -> list[Parameter]:
    return _module(
        name,
        ("branch1x1", channels, 320, 1, 8),
        ("branch3x3_1", channels, 384, 1, 8),
        ("branch3x3_2a", 384, 384, (1, 3), 8),
        ("branch3x3_2b", 384, 384, (3, 1), 8),
        ("branch3x3dbl_1", channels, 448, 1, 8),
        ("branch3x3dbl_2", 448, 384, 3, 8),
        ("branch3x3dbl_3a", 384, 384, (1, 3), 8),
        ("branch3x3dbl_3b", 384, 384, (3, 1), 8),
        ("branch_pool", channels, 192, 1, 8),
    )


def _v4_a(name: str) -> list[Parameter]:
    return _module(
        name,
        ("branch0", 384, 96, 1, 35),
        ("branch1.0", 384, 64, 1, 35),
        ("branch1.1", 64, 96, 3, 35),
        ("branch2.0", 384, 64, 1, 35),
        ("branch2.1", 64, 96, 3, 35),
        ("branch2.2", 96, 96, 3, 35),
        ("branch3.1", 384, 96, 1, 35),
    )


def _v4_b(name: str) -> list[Parameter]:
    return _module(
        name,
        ("branch0", 1024, 384, 1, 17),
        ("branch1.0", 1024, 192, 1, 17),
        ("branch1.1", 192, 224, (1, 7), 17),
        ("branch1.2", 224, 256, (7, 1), 17),
        ("branch2.0", 1024, 192, 1, 17),
        ("branch2.1", 192, 192, (7, 1), 17),
        ("branch2.2", 192, 224, (1, 7), 17),
        ("branch2.3", 224, 224, (7, 1), 17),
        ("branch2.4", 224, 256, (1, 7), 17),
        ("branch3.1", 1024, 128, 1, 17),
    )


def _v4_c(name: str) -> list[Parameter]:
    return _module(
        name,
        ("branch0", 1536, 256, 1, 8),
        ("branch1_0", 1536, 384, 1, 8),
        ("branch1_1a", 384, 256, (1, 3), 8),
        ("branch1_1b", 384, 256, (3, 1), 8),
        ("branch2_0", 1536, 384, 1, 8),
        ("branch2_1", 384, 448, (3, 1), 8),
        ("branch2_2", 448, 512, (1, 3), 8),
        ("branch2_3a", 512, 256, (1, 3), 8),
        ("branch2_3b", 512, 256, (3, 1), 8),
        ("branch3.1", 1536, 256, 1, 8),
    )


def _module(prefix: str, *convolutions: Convolution) -> list[Parameter]:
    """Convolutions without bias, each followed by its normalisation."""
    parameters: list[Parameter] = []
    for name, inputs, outputs, kernel, side in convolutions:
        parameters += convolution(f"{prefix}{name}.conv", inputs, outputs, kernel, side)
        parameters += normalisation(f"{prefix}{name}.bn", outputs, side * side)
    return parameters
