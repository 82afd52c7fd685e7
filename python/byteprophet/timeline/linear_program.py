"""A linear program that is put together piece by piece and solved by HiGHS (through scipy)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog
from scipy.sparse import csr_array

Floats = npt.NDArray[np.float64]


class LinearProgram:
    """Variables within bounds, and rows ``sum(value * variable) <= limit``.

    Costs are given anew for each solution, so several can be asked of the same rows. The dual
    simplex is used: it ends in a corner, the same one each time.
    """

    def __init__(self) -> None:
        self.lower: list[float] = []
        self.upper: list[float] = []
        self._columns: list[npt.NDArray[np.intp]] = []
        self._values: list[Floats] = []
        self._limits: list[Floats] = []

    def variable(self, lower: float = -np.inf, upper: float = np.inf) -> int:
        """The index of a new variable."""
        self.lower.append(lower)
        self.upper.append(upper)
        return len(self.lower) - 1

    def rows(self, columns: Iterable[int], values: Floats, limits: Floats) -> None:
        """Add a row per limit: ``values`` (rows, variables) of the variables ``columns``.

        A variable that is named twice counts with the sum.
        """
        self._columns.append(np.tile(np.fromiter(columns, np.intp), (len(limits), 1)))
        self._values.append(values)
        self._limits.append(limits)

    def minimise(self, costs: dict[int, float]) -> Floats:
        """The variables' values where ``sum(cost * variable)`` is least.

        ``RuntimeError`` with the solver's words if there are none: whoever puts a program together
        sees to it that rows can be kept and the cost has a least value.
        """
        cost = np.zeros(len(self.lower))
        cost[list(costs)] = list(costs.values())
        matrix, limits = self._matrix()
        result = linprog(
            cost,
            A_ub=matrix,
            b_ub=limits,
            bounds=np.column_stack([self.lower, self.upper]),
            method="highs-ds",
        )
        if result.status != 0:
            raise RuntimeError(f"a linear program was not solved: {result.message}")
        values: Floats = result.x
        return values

    def _matrix(self) -> tuple[Any, Any]:
        if not self._limits:
            return None, None
        numbers = np.arange(sum(len(limits) for limits in self._limits))
        widths = np.concatenate([np.full(len(c), c.shape[1]) for c in self._columns])
        entries = (
            np.concatenate([values.ravel() for values in self._values]),
            (np.repeat(numbers, widths), np.concatenate([c.ravel() for c in self._columns])),
        )
        matrix = csr_array(entries, shape=(len(numbers), len(self.lower)))
        return matrix, np.concatenate(self._limits)
