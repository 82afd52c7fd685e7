"""Kernels of a table of costs as a cluster has them: measured over modelled times, by shape."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import gcd
from statistics import median
from typing import TypeVar

import numpy as np

from byteprophet.simulate.clusters.description import Gpu
from byteprophet.simulate.clusters.kernels import Curve, Kernels
from byteprophet.simulate.clusters.shapes import Shapes
from byteprophet.simulate.compile.steps import Compute, Phase
from byteprophet.simulate.costs.reference_operators import (
    reference,
    reference_attention,
    reference_convolution,
)
from byteprophet.simulate.costs.roofline import Roofline
from byteprophet.simulate.costs.table import CostTable
from byteprophet.simulate.operation.mesh import Mesh
from byteprophet.simulate.operation.operator import Operator

_ELEMENT_BYTES, _ALIGNED_BYTES = 2, 16
Key = TypeVar("Key")


def kernels_of(table: CostTable, gpu: Gpu, products: Shapes | None) -> Kernels:
    """What was measured besides plain matrix products, of a GPU with the table's efficiencies.

    ``products``: the ratios of plain ones.
    """
    model = Roofline(gpu, Mesh(), products)
    return Kernels(
        attention=_attention(table, model),
        convolutions=_convolutions(table, model),
        unaligned=unaligned(table, gpu),
        update_efficiency=table.update_bytes_per_s / gpu.memory_bytes_per_s,
        transposed=_transposed(table, model),
    )


def curves(table: CostTable, gpu: Gpu) -> dict[tuple[str, str], float | Curve]:
    """Of operators that memory limits, by name and phase; one number if there is one size."""
    model = Roofline(gpu, Mesh())
    found: dict[tuple[str, str], dict[float, float]] = {}
    for name, phase, rows, columns, measured_ns in table.operators:
        modelled_ns = _modelled_ns(model, reference(name, rows, columns), phase)
        found.setdefault((name, phase), {})[modelled_ns] = measured_ns / modelled_ns
    return {key: _curve(ratios) for key, ratios in found.items()}


def _curve(ratios: Mapping[float, float]) -> float | Curve:
    if len(ratios) == 1:
        return next(iter(ratios.values()))
    sizes, values = zip(*sorted(ratios.items()), strict=True)
    return Curve(tuple(float(np.log(size)) for size in sizes), tuple(values))


def unaligned(table: CostTable, gpu: Gpu) -> dict[tuple[int, str], float]:
    """The part of the peak that unaligned products reach: the median of all shapes."""
    found: dict[tuple[int, str], list[float]] = {}
    for phase, rows, columns, inner, measured_ns in table.unaligned:
        aligned = gcd(_ALIGNED_BYTES, _ELEMENT_BYTES * columns, _ELEMENT_BYTES * inner)
        rate = 2e9 * rows * columns * inner / measured_ns
        found.setdefault((aligned, phase), []).append(rate / gpu.flops_per_s)
    return {key: median(parts) for key, parts in found.items()}


def _attention(table: CostTable, model: Roofline) -> dict[tuple[str, str], Shapes]:
    rows = []
    for phase, mask, samples, heads, tokens, width, measured_ns in table.attention:
        operator = reference_attention(samples, heads, tokens, width, causal=mask == "causal")
        ratio = measured_ns / _modelled_ns(model, operator, phase)
        rows.append(((phase, mask), (samples * heads, tokens, width), ratio))
    return _shapes(rows)


def _convolutions(table: CostTable, model: Roofline) -> dict[str, Shapes]:
    rows = []
    for phase, samples, inputs, outputs, kernel, stride, side, measured_ns in table.convolutions:
        operator = reference_convolution(samples, inputs, outputs, kernel, stride, side)
        ratio = measured_ns / _modelled_ns(model, operator, phase)
        places = samples * (-(-side // stride)) ** 2
        read = samples * inputs * side**2 / places
        rows.append((phase, (places, outputs, inputs * kernel**2, read), ratio))
    return _shapes(rows)


def _transposed(table: CostTable, model: Roofline) -> dict[str, Shapes]:
    rows = []
    for phase, *sizes, measured_ns in table.transposed:
        shape = sizes if phase == Phase.FORWARD.value else sizes[::-1]
        rows.append((phase, tuple(sizes), measured_ns / model.product_ns(1, *shape)))
    return _shapes(rows)


def _modelled_ns(model: Roofline, operator: Operator, phase: str) -> float:
    return model.time_ns(Compute(operator, (), Phase(phase)))


def _shapes(rows: Iterable[tuple[Key, tuple[float, ...], float]]) -> dict[Key, Shapes]:
    """The ratios of each key, by sizes."""
    found: dict[Key, list[tuple[tuple[float, ...], float]]] = {}
    for key, sizes, ratio in rows:
        found.setdefault(key, []).append((sizes, ratio))
    return {
        key: Shapes(
            np.log(np.array([sizes for sizes, _ in its], np.float64)),
            np.array([ratio for _, ratio in its], np.float64),
        )
        for key, its in found.items()
    }
