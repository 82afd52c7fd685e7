"""Builds a linear program piece by piece, and solves it with HiGHS (through scipy)."""

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

    Each solution takes its own costs, so the same rows can be solved several times. The dual
    simplex method is used, because it ends in a corner, the same one each time.
    """

    def __init__(self) -> None:
        self.lower: list[float] = []
        self.upper: list[float] = []
        self._columns: list[npt.NDArray[np.intp]] = []
        self._values: list[Floats] = []
        self._limits: list[Floats] = []

    def variable(self, lower: float = -np.inf, upper: float = np.inf) -> int:
        """Adds a variable and returns its index."""
        self.lower.append(lower)
        self.upper.append(upper)
        return len(self.lower) - 1

    def rows(self, columns: Iterable[int], values: Floats, limits: Floats) -> None:
        """Adds one row per limit. ``values`` (rows, variables) are the factors of ``columns``.

        The factors of a variable that occurs twice are added.
        """
        self._columns.append(np.tile(np.fromiter(columns, np.intp), (len(limits), 1)))
        self._values.append(values)
        self._limits.append(limits)

    def minimise(self, costs: dict[int, float]) -> Floats:
        """The values of the variables that minimise ``sum(cost * variable)``.

        Raises ``RuntimeError`` with the solver's message if there is no solution. The caller must
        make sure that all rows can be satisfied and that the cost is bounded from below.
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
