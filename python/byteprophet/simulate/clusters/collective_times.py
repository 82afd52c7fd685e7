"""How much longer measured collectives take than the model of rings says, by kind and size.

They were measured between ranks that are alone in their nodes, each by itself on the links, and as
jobs issue them: after other work, through the same interfaces. So their times contain what that
costs. Between measured sizes, the ratio is interpolated along the logarithm of the size; beyond
them, it stays as it is. For a number of ranks that was not measured, that of the nearest is taken.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ratios = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]
"""Logarithms of sizes in ascending order, and measured over modelled times; shapes (n,)."""


@dataclass(frozen=True, eq=False)
class CollectiveTimes:
    """Measured collectives. ``ratios``: by kind, and by number of ranks."""

    ratios: Mapping[str, Mapping[int, Ratios]]

    def ratio(self, kind: str, ranks: int, size_bytes: float) -> float:
        """The ratio of a collective; 1 if none of its kind was measured."""
        of_kind = self.ratios.get(kind)
        if not of_kind or size_bytes <= 0:
            return 1.0
        nearest = min(of_kind, key=lambda known: (abs(math.log(known / ranks)), known))
        sizes, ratios = of_kind[nearest]
        return float(np.exp(np.interp(math.log(size_bytes), sizes, np.log(ratios))))
