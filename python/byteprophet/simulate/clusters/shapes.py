"""How much longer measured operators take than the model says, by their shape."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from scipy.spatial import cKDTree

_NEIGHBOURS = 4


@dataclass(frozen=True, eq=False)
class Shapes:
    """Measured shapes.

    Attributes:
        logarithms: of the sizes of each, such as rows, columns and inner size, shape (n, sizes).
        ratios: measured time over that of the model, (n,).
    """

    logarithms: npt.NDArray[np.float64]
    ratios: npt.NDArray[np.float64]
    _known: dict[tuple[float, ...], float] = field(default_factory=dict, repr=False)

    def ratio(self, *sizes: float) -> float:
        """The ratio of a shape: that of its neighbours, the nearer the more."""
        if sizes not in self._known:
            at = np.log(np.maximum(1.0, sizes))
            count = min(_NEIGHBOURS, len(self.ratios))
            distances, which = self._tree.query(at, k=[*range(1, count + 1)])
            weights = 1 / (distances**2 + 1e-6)
            logarithm = (weights * np.log(self.ratios[which])).sum() / weights.sum()
            self._known[sizes] = float(np.exp(logarithm))
        return self._known[sizes]

    @cached_property
    def _tree(self) -> cKDTree:
        from scipy.spatial import cKDTree  # which takes a moment, and few need it

        return cKDTree(self.logarithms)
