"""Measures kernels whose times depend on more than their FLOPs and bytes, with PyTorch.

Fused attention by length and width of a head, forward and backward; convolutions, with the
gradients of input and weight apart; products with a transposed matrix, and those with a parameter
whose rows do not begin at multiples of 16 bytes; a fused step of Adam; and what the host needs per
operator in training.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

from byteprophet.simulate.costs.table import (
    MASKS,
    MeasuredAttention,
    MeasuredConvolution,
    MeasuredLayer,
)
from byteprophet.simulate.costs.taking_turns import Run, both_passes, in_turn, sets

Timer = Callable[[Run], float]

_LENGTHS = {"cpu": (64, 256, 1024), "cuda": (128, 256, 512, 1024, 2048, 4096)}
_WIDTHS = {"cpu": (32, 64, 128), "cuda": (64, 128)}
_HEADS, _TOKENS = {"cpu": 4, "cuda": 16}, {"cpu": 1024, "cuda": 8192}
"""Heads, and tokens of all samples."""
_CONVOLUTIONS = {
    "cpu": ((2, 3, 16, 7, 2, 32), (2, 16, 32, 3, 1, 16), (2, 32, 16, 1, 1, 16)),
    "cuda": (
        *((16, 64, 64, 3, 1, 56), (16, 256, 256, 3, 1, 14), (16, 1024, 256, 1, 1, 14)),
        *((64, 3, 64, 7, 2, 224), (64, 64, 64, 1, 1, 56), (64, 64, 64, 3, 1, 56)),
        *((64, 64, 256, 1, 1, 56), (64, 256, 64, 1, 1, 56), (64, 256, 512, 1, 2, 56)),
        *((64, 128, 128, 3, 2, 56), (64, 128, 128, 3, 1, 28), (64, 512, 128, 1, 1, 28)),
        *((64, 256, 256, 3, 1, 14), (64, 1024, 256, 1, 1, 14), (64, 256, 1024, 1, 1, 14)),
        *((64, 512, 512, 3, 1, 7), (64, 512, 2048, 1, 1, 7), (64, 3, 64, 3, 1, 224)),
        *((64, 64, 64, 3, 1, 224), (64, 128, 128, 3, 1, 112), (64, 256, 256, 3, 1, 56)),
        (64, 512, 512, 3, 1, 28),
    ),
}
"""Samples, input and output channels, kernel, stride and side, of ResNet-50 and VGG."""
_UNALIGNED = {
    "cpu": ((256, 1001, 64), (256, 1002, 64), (256, 1004, 64)),
    "cuda": ((8192, 50257, 1024), (8192, 30522, 1024), (8192, 50260, 1024), (2048, 50257, 768)),
}
"""Rows, columns and inner size: 2, 4 and 8 bytes."""
_SIZES = {"cpu": (128, 512, 2048), "cuda": (512, 2048, 8192)}
"""Of products with a transposed matrix. How much slower one makes them changes little by size."""
_PARAMETERS, _PARTS = {"cpu": 1 << 22, "cuda": 1 << 26}, 16
"""Their state is in no cache."""
ADAM_BYTES = 28
"""Bytes per fp32 parameter that a step reads and writes: parameter, gradient, both moments."""
_BLOCKS, _WIDTH, _TRIES = 32, 64, 5


def measured_attention(
    torch: Any, device: str, dtype: Any, time_ns: Timer
) -> Iterator[MeasuredAttention]:
    """Fused attention of heads of queries as many as of keys."""
    attend = torch.nn.functional.scaled_dot_product_attention
    heads = _HEADS[device]
    for tokens, width, mask in product(_LENGTHS[device], _WIDTHS[device], MASKS):
        size = _TOKENS[device] // tokens, heads, tokens, width
        causal = mask == "causal"
        calls = []
        for own in sets(device, [_random(torch, device, dtype, size) for _ in range(3)]):
            given = [each.requires_grad_() for each in own]
            calls.append(both_passes(torch, partial(attend, *given, is_causal=causal), given))
        for at, phase in enumerate(("forward", "backward")):
            yield phase, mask, *size, time_ns(in_turn([call[at] for call in calls]))


def measured_convolutions(
    torch: Any, device: str, dtype: Any, time_ns: Timer
) -> Iterator[MeasuredConvolution]:
    """Square convolutions, channels last. The first layer of a network has no input gradient."""
    for shape in _CONVOLUTIONS[device]:
        samples, inputs, outputs, kernel, stride, side = shape
        images, weight = (
            _random(torch, device, dtype, size).to(memory_format=torch.channels_last)
            for size in ((samples, inputs, side, side), (outputs, inputs, kernel, kernel))
        )
        how = (stride, stride), (kernel // 2, kernel // 2), (1, 1)
        gradient = torch.ones_like(torch.nn.functional.conv2d(images, weight, None, *how))

        def forward(images: Any = images, weight: Any = weight, how: Any = how) -> Any:
            return torch.nn.functional.conv2d(images, weight, None, *how)

        def backward(
            of_images: bool,
            given: Any = (gradient, images, weight),
            how: Any = how,
        ) -> Any:
            wanted = [of_images, not of_images, False]
            return torch.ops.aten.convolution_backward(*given, None, *how, False, (0, 0), 1, wanted)

        yield "forward", *shape, time_ns(forward)
        if inputs > 3:
            yield "backward", *shape, time_ns(lambda run=backward: run(True))  # type: ignore[misc]
        yield "weight", *shape, time_ns(lambda run=backward: run(False))  # type: ignore[misc]


def measured_unaligned(
    torch: Any, device: str, dtype: Any, time_ns: Timer
) -> Iterator[MeasuredLayer]:
    """All products of linear layers with rows that begin anywhere."""
    for shape in _UNALIGNED[device]:
        yield from _products(torch, device, dtype, shape, time_ns)


def measured_transposed(
    torch: Any, device: str, dtype: Any, time_ns: Timer
) -> Iterator[MeasuredLayer]:
    """The products of linear layers in which a matrix is transposed."""
    sizes = _SIZES[device]
    for shape in product(sizes, sizes, sizes):
        yield from _products(torch, device, dtype, shape, time_ns, ("forward", "weight"))


def _products(
    torch: Any,
    device: str,
    dtype: Any,
    shape: tuple[int, int, int],
    time_ns: Timer,
    phases: Sequence[str] = ("forward", "backward", "weight"),
) -> Iterator[MeasuredLayer]:
    """The products of a linear layer, laid out as PyTorch does."""
    rows, columns, inner = shape
    sizes = (rows, inner), (columns, inner), (rows, columns)
    tensors = sets(device, [_random(torch, device, dtype, size) for size in sizes])
    runs: dict[str, Callable[[Any, Any, Any], Any]] = {
        "forward": lambda given, weight, _: given @ weight.t(),
        "backward": lambda _, weight, gradient: gradient @ weight,
        "weight": lambda given, _, gradient: gradient.t() @ given,
    }
    for phase in phases:
        calls = [partial(runs[phase], *own) for own in tensors]
        yield phase, *shape, time_ns(in_turn(calls))


def update_bytes_per_s(torch: Any, device: str, time_ns: Timer) -> float:
    """What a fused step of Adam on fp32 parameters reads and writes per second."""
    size = _PARAMETERS[device] // _PARTS
    parameters = [_random(torch, device, torch.float32, (size,)) for _ in range(_PARTS)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    adam = torch.optim.AdamW(parameters, lr=1e-5, fused=True)
    return ADAM_BYTES * _PARTS * size / time_ns(adam.step) * 1e9


def training_launch_ns(torch: Any, device: str, wait: Callable[[], None]) -> float:
    """The host's time per operator in a forward and backward pass of a small model.

    Blocks are a normalisation, a linear layer and GELU. The simulator counts three operators
    forward, and five backward: the linear layer has three (``eager`` of ``Strategy``).
    """
    nn = torch.nn
    with torch.enable_grad():
        blocks = [
            nn.Sequential(nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, _WIDTH), nn.GELU())
            for _ in range(_BLOCKS)
        ]
        model = nn.Sequential(*blocks).to(device)
        given = torch.rand(8, _WIDTH, device=device)
        times = []
        for _ in range(_TRIES):
            model.zero_grad()
            wait()
            began = time.perf_counter_ns()
            model(given).sum().backward()
            times.append(time.perf_counter_ns() - began)
        wait()
    return statistics.median(times) / (8 * _BLOCKS)


def _random(torch: Any, device: str, dtype: Any, size: tuple[int, ...]) -> Any:
    return torch.rand(size, device=device, dtype=dtype)
