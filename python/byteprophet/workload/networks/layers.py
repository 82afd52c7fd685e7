"""Layers with their parameter shapes and operation counts, and how those become a workload.

The rule for times: a tensor's share of the compute time is its share of the floating-point
operations of one sample, and backward takes twice forward (gradients of the input and of the
parameters, each about as dear as the output). Operations are counted per tensor:

    convolution, linear   weight: 2 per multiply-add; bias: 1 per output element
    normalisation         weight: 2 per element (normalise, scale); bias: 1 per element
    embedding             1 per output element (the sum of the embeddings)
    without parameters    attention's two matrix products count for the last tensor before them

Activation, pooling, softmax and dropout count nothing. Normalisation is limited by memory, not
arithmetic, on an accelerator, and so really takes a larger share than this rule gives it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod

from byteprophet.workload.model import FLOAT32_BYTES, Tensor, Workload

BACKWARD_OVER_FORWARD = 2


@dataclass(frozen=True)
class Parameter:
    """A parameter tensor and the operations of one sample's forward pass that it answers for.

    ``multiply_adds`` counts those of matrix products and convolutions only, as published figures
    do.
    """

    name: str
    shape: tuple[int, ...]
    operations: int
    multiply_adds: int = 0


def convolution(
    name: str,
    inputs: int,
    outputs: int,
    kernel: int | tuple[int, int],
    out_side: int,
    *,
    bias: bool = False,
) -> list[Parameter]:
    """A 2-d convolution with square output of ``out_side`` pixels a side.

    ``kernel``: its side, or its height and width.
    """
    pixels = out_side * out_side
    height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
    shape = (outputs, inputs, height, width)
    return _affine(name, shape, prod(shape) * pixels, outputs * pixels, bias)


def linear(name: str, inputs: int, outputs: int, *, positions: int = 1) -> list[Parameter]:
    """A dense layer with bias, applied to ``positions`` vectors of a sample."""
    shape = (outputs, inputs)
    return _affine(name, shape, prod(shape) * positions, outputs * positions, True)


def normalisation(name: str, channels: int, positions: int) -> list[Parameter]:
    """Batch or layer normalisation of ``channels`` at ``positions`` places of a sample.

    Running statistics are buffers, not parameters: they have no gradient and are not here.
    """
    elements = channels * positions
    return [
        Parameter(f"{name}.weight", (channels,), 2 * elements),
        Parameter(f"{name}.bias", (channels,), elements),
    ]


def embedding(name: str, rows: int, width: int, positions: int) -> list[Parameter]:
    """A table of ``rows`` vectors, looked up at ``positions`` places of a sample.

    Its gradient is dense, as ``torch.nn.Embedding`` makes it by default.
    """
    return [Parameter(f"{name}.weight", (rows, width), positions * width)]


def with_products(parameters: list[Parameter], multiply_adds: int) -> list[Parameter]:
    """The parameters, the last of which also answers for products that run right after it.

    These are ``multiply_adds`` of matrix products that have no parameters of their own.
    """
    *before, last = parameters
    return [
        *before,
        replace(
            last,
            operations=last.operations + 2 * multiply_adds,
            multiply_adds=last.multiply_adds + multiply_adds,
        ),
    ]


def to_workload(
    name: str, batch_size: int, compute_ns: int, parameters: Iterable[Parameter]
) -> Workload:
    """The parameters as a workload whose forward and backward take ``compute_ns`` together."""
    tensors = tuple(
        Tensor(
            name=parameter.name,
            size_bytes=FLOAT32_BYTES * prod(parameter.shape),
            forward_ns=parameter.operations,
            backward_ns=BACKWARD_OVER_FORWARD * parameter.operations,
        )
        for parameter in parameters
    )
    return Workload(name, batch_size, tensors).scaled(compute_ns)


def _affine(
    name: str, shape: tuple[int, ...], multiply_adds: int, elements: int, bias: bool
) -> list[Parameter]:
    weight = Parameter(f"{name}.weight", shape, 2 * multiply_adds, multiply_adds)
    return [weight, Parameter(f"{name}.bias", shape[:1], elements)] if bias else [weight]
