"""Measured kernels of a GPU whose times depend on more than their FLOPs and bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from byteprophet.simulate.clusters.shapes import Shapes


@dataclass(frozen=True, eq=False)
class Curve:
    """Measured over modelled times by size.

    Attributes:
        logarithms: of modelled times in ns, ascending, shape (n,).
        ratios: (n,).
    """

    logarithms: tuple[float, ...]
    ratios: tuple[float, ...]

    def at(self, modelled_ns: float) -> float:
        """The ratio of an operator whose modelled time is this; of larger ones, the last."""
        return float(np.interp(np.log(max(1.0, modelled_ns)), self.logarithms, self.ratios))


@dataclass(frozen=True, eq=False)
class Kernels:
    """Measured over modelled times, by shape.

    Attributes:
        attention: by phase and "causal" or "full": of (samples x heads, tokens, width).
        convolutions: by phase: of the matrix product that a convolution is (rows, columns, inner
            size), and of elements of the input per row.
        unaligned: by bytes at multiples of which rows begin, and by phase: the part of the peak
            that products reach.
        update_efficiency: the part of the memory bandwidth that a step of Adam reaches; 0: that of
            other operators.
        transposed: by phase: of products of linear layers with a transposed matrix (rows, columns,
            inner size of the layer), over plain ones of the same shape.
    """

    attention: Mapping[tuple[str, str], Shapes] = field(default_factory=dict)
    convolutions: Mapping[str, Shapes] = field(default_factory=dict)
    unaligned: Mapping[tuple[int, str], float] = field(default_factory=dict)
    update_efficiency: float = 0.0
    transposed: Mapping[str, Shapes] = field(default_factory=dict)
