"""What CUDA kernels allocate besides their results, and in which order.

An operation is a list of *steps*: a result (a tensor), or sizes of scratch memory that are
allocated one after the other and freed together. Known exactly, from PyTorch's source and equal to
recorded allocations: reductions, dropout, attention, gradients of embeddings (but for the scratch
memory of sorting, of some kilobytes).

What cuDNN's convolutions take is up to its heuristics, which are not public. The formulas here were
read off one recorded iteration (ResNet-50, float32, 32 images, H200): operands in NCHW are copied
to NHWC, and gradients of weights are added up from partial sums. They hold for most of its
convolutions to some bytes, and for the others to some megabytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from byteprophet.memory.cuda.gpu import Gpu

Step = Tensor | tuple[int, ...]
_aten = torch.ops.aten

_WARP = 32
_MOST_THREADS = 512
_LEAST_VALUES, _MOST_VALUES = 16, 256  # per thread
_VECTOR = 4
_FLOAT_BYTES, _INDEX_BYTES = 4, 8
_ROWS_PER_PART = 10
_UNSORTED_INDICES = 3072  # embeddings of at most so many are summed without sorting
_SORTING_BYTES, _SCANNING_BYTES = 18_943, 1279
_CUDNN_BYTES = 16
_POINTWISE_BYTES = 400
_TILE = 128
_SMALL_IMAGE = 7
_MOST_PER_IMAGE_BYTES = 32 << 20
_ATTENTION_BYTES = 256
_NARROW, _NARROW_PART = 128, 32  # of a head
_WEIGHT_DIMENSIONS = 4


def steps(gpu: Gpu, operator: Any, args: Sequence[Any], results: list[Tensor]) -> list[Step]:
    """What a call allocates, in order. ``results``: all tensors that it returns."""
    rule = _RULES.get(operator)
    return list(results) if rule is None else rule(gpu, args, results)


def _dropout(_gpu: Gpu, _args: Sequence[Any], results: list[Tensor]) -> list[Step]:
    return [results[1], results[0]]  # the mask comes first


def _cudnn_attention(_gpu: Gpu, _args: Sequence[Any], results: list[Tensor]) -> list[Step]:
    return [*results[2:], *results[:2], (_ATTENTION_BYTES,)]


def _cudnn_attention_backward(_gpu: Gpu, args: Sequence[Any], results: list[Tensor]) -> list[Step]:
    query = args[1]  # the gradient of the queries is summed in float32
    rows = query.numel() // query.shape[-1]
    scratch = (query.numel() + rows) * _FLOAT_BYTES + _ATTENTION_BYTES
    return [*results, (scratch,)]


def _flash_attention_backward(_gpu: Gpu, args: Sequence[Any], results: list[Tensor]) -> list[Step]:
    """Row sums, and the gradient of the queries in float32, both of padded sequences and heads.

    Source: ``mha_bwd`` in ``aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp``.
    """
    batch, heads, length, width = args[1].shape
    rows = batch * heads * -(-length // _TILE) * _TILE
    part = _NARROW_PART if width <= _NARROW else 2 * _NARROW_PART
    return [*results, (rows * _FLOAT_BYTES, rows * -(-width // part) * part * _FLOAT_BYTES)]


def _attention_backward(_gpu: Gpu, args: Sequence[Any], results: list[Tensor]) -> list[Step]:
    result = args[5]  # its product with the gradient is summed
    product = result.numel() * _FLOAT_BYTES
    return [*results, (product, product // result.shape[-1])]


def _sum(gpu: Gpu, args: Sequence[Any], results: list[Tensor]) -> list[Step]:
    values, dims = args[0], args[1] if len(args) > 1 else None
    outputs = results[0].numel()
    if not outputs or not values.numel():
        return list(results)
    last = values.dim() - 1
    is_along_rows = not dims or last in [dim % values.dim() for dim in dims]
    return [*results, reduction(gpu, outputs, values.numel() // outputs, is_along_rows)]


def reduction(gpu: Gpu, outputs: int, inputs: int, is_along_rows: bool) -> tuple[int, ...]:
    """Scratch memory of a reduction of contiguous values: partial results, and counters.

    ``inputs``: values per output. ``is_along_rows``: the values of an output are neighbours.
    Source: ``setReduceConfig`` in ``aten/src/ATen/native/cuda/Reduce.cuh``.
    """
    vector = 1 if is_along_rows else math.gcd(outputs, _VECTOR)
    most = _MOST_THREADS // vector
    if is_along_rows:
        across = inputs // _VECTOR if outputs == 1 and inputs > _TILE else inputs
        down = outputs
    else:
        across, down = outputs // vector, inputs
    width = min(_power_of_two(across, most), _WARP)
    height = min(_power_of_two(down, most), most // width)
    width = min(_power_of_two(across, most), most // height)
    per_thread = -(-inputs // width) if is_along_rows else inputs
    columns = outputs // vector if is_along_rows else -(-(outputs // vector) // width)
    if per_thread < min(height * _LEAST_VALUES, _MOST_VALUES):
        return ()
    per_thread = -(-per_thread // height)
    target = gpu.multiprocessors * (gpu.threads_per_multiprocessor // (width * height))
    if per_thread < _MOST_VALUES or columns > target:
        return ()
    blocks = max(
        min(-(-target // columns), -(-per_thread // _LEAST_VALUES)), -(-per_thread // _MOST_VALUES)
    )
    if blocks <= 1:
        return ()
    partial = outputs * blocks * (1 if is_along_rows else width * vector)
    return partial * _FLOAT_BYTES, columns * _FLOAT_BYTES


def _power_of_two(value: int, most: int) -> int:
    return most if value >= most else 1 << max(value.bit_length() - 1, 0)


def _embedding_backward(_gpu: Gpu, args: Sequence[Any], results: list[Tensor]) -> list[Step]:
    gradient, indices, rows = args[:3]
    count, width = indices.numel(), gradient.shape[-1]
    if count <= _UNSORTED_INDICES:
        return list(results)
    keys = count * _INDEX_BYTES
    parts = count // _ROWS_PER_PART + min(count, rows)
    return [
        (keys, keys, keys, 2 * keys + _SORTING_BYTES),
        *results,
        (
            keys,
            keys,
            keys,
            keys,
            _SCANNING_BYTES,
            parts * _INDEX_BYTES,
            parts * width * _FLOAT_BYTES,
        ),
    ]


def _convolution(_gpu: Gpu, args: Sequence[Any], results: list[Tensor]) -> list[Step]:
    values, weight, _, stride = args[:4]
    return [*results, _convolved(values, weight, results[0], stride, is_nhwc(values, weight))]


def _convolution_backward(gpu: Gpu, args: Sequence[Any], results: list[Tensor]) -> list[Step]:
    gradient, values, weight, stride, wanted = args[0], args[1], args[2], args[4], args[-1]
    is_last, left = is_nhwc(values, weight), list(results)
    found: list[Step] = []
    if wanted[0]:
        found += [left.pop(0), _convolved(gradient, weight, values, stride, is_last)]
    if wanted[1]:
        weights = _weights(gpu, gradient, values, weight, stride, is_last)
        found += [left.pop(0), (weights,)]
    return [*found, *left]


def is_nhwc(values: Tensor, weight: Tensor) -> bool:
    """Whether a convolution's operands lie in the channels-last format, and so do its results."""
    return any(
        tensor.dim() == _WEIGHT_DIMENSIONS
        and tensor.is_contiguous(memory_format=torch.channels_last)
        and not tensor.is_contiguous()
        for tensor in (values, weight)
    )


def _convolved(
    values: Tensor, weight: Tensor, result: Tensor, stride: Sequence[int], is_last: bool
) -> tuple[int, ...]:
    if is_last:
        return ()
    if _is_pointwise(weight, stride) and values.shape[-1] > _SMALL_IMAGE:
        return (_POINTWISE_BYTES,)
    weights = weight.nbytes if math.prod(weight.shape[2:]) > 1 else 0
    return (values.nbytes + result.nbytes + weights + _CUDNN_BYTES,)


def _weights(
    gpu: Gpu,
    gradient: Tensor,
    values: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    is_last: bool,
) -> int:
    weight_bytes = weight.numel() * _FLOAT_BYTES
    tiles = -(-weight.shape[0] // _TILE) * -(-weight.numel() // weight.shape[0] // _TILE)
    parts = round(gpu.multiprocessors / tiles)
    partial_bytes = parts * weight_bytes if parts > 2 else 0
    if is_last:
        return partial_bytes
    per_image_bytes = values.shape[0] * weight_bytes
    if (
        _is_pointwise(weight, stride)
        and gradient.shape[-1] > _SMALL_IMAGE
        and per_image_bytes <= _MOST_PER_IMAGE_BYTES
    ):
        return per_image_bytes
    return values.nbytes + gradient.nbytes + _CUDNN_BYTES + partial_bytes


def _is_pointwise(weight: Tensor, stride: Sequence[int]) -> bool:
    return math.prod(weight.shape[2:]) == 1 and all(step == 1 for step in stride)


_RULES: dict[Any, Callable[[Gpu, Sequence[Any], list[Tensor]], list[Step]]] = {
    _aten.native_dropout.default: _dropout,
    _aten._scaled_dot_product_cudnn_attention.default: _cudnn_attention,
    _aten._scaled_dot_product_cudnn_attention_backward.default: _cudnn_attention_backward,
    _aten._scaled_dot_product_flash_attention_backward.default: _flash_attention_backward,
    _aten._scaled_dot_product_efficient_attention_backward.default: _attention_backward,
    _aten.sum.default: _sum,
    _aten.sum.dim_IntList: _sum,
    _aten.embedding_dense_backward.default: _embedding_backward,
    _aten.convolution.default: _convolution,
    _aten.convolution_backward.default: _convolution_backward,
}
