"""Columns of integers to which blocks of rows are appended."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from byteprophet.errors import UserError

Integers: TypeAlias = npt.NDArray[np.integer[Any]]

_FIRST_CAPACITY = 64
_COLLECTED = 1024


class Columns:
    """An append-only table of integer columns.

    A column needs no memory while all its rows have the default value. Defaults are filled in when
    a row with another value is added, or at the end. Memory grows by doubling, so that the total
    cost of adding is linear. Rows that are added one by one are collected first, because a call of
    numpy costs as much as many rows.
    """

    def __init__(self, columns: Mapping[str, tuple[npt.DTypeLike, int]]) -> None:
        """Make an empty table. ``columns`` holds the type and the default value of each column."""
        self._rows = 0
        self._collected: list[Mapping[str, Any]] = []
        self._columns = {
            name: _Column(name, np.dtype(dtype), default)
            for name, (dtype, default) in columns.items()
        }

    def __len__(self) -> int:
        """The number of rows."""
        return self._rows + len(self._collected)

    def add(self, shape: int | tuple[int, ...], /, **values: npt.ArrayLike) -> int:
        """Add one row for each element of an array of ``shape``. Returns the first row's number.

        ``values`` holds integers by column. They are broadcast to ``shape`` and used in C order.
        Raises ``UserError`` if a value is not an integer or does not fit into its column,
        ``ValueError`` if a shape does not fit, and ``TypeError`` if there is no such column. After
        an error, no row was added.
        """
        self._write_collected()
        first = self._rows
        self._write((shape,) if isinstance(shape, int) else shape, values)
        return first

    def add_one(self, **values: npt.ArrayLike) -> int:
        """Add one row and return its number. Raises the errors of ``add``, but maybe only later."""
        self._collected.append(values)
        if len(self._collected) == _COLLECTED:
            self._write_collected()
            return self._rows - 1
        return len(self) - 1

    def whole(self) -> dict[str, Any]:
        """All rows of each column, as read-only views. They need no copy, as rows never change."""
        self._write_collected()
        return {name: column.whole(self._rows) for name, column in self._columns.items()}

    def _write_collected(self) -> None:
        """Write the rows that were added one by one."""
        if not (rows := self._collected):
            return
        given: dict[str, list[Any]] = {}
        for name in set().union(*rows):
            default = self._columns[name].default if name in self._columns else 0
            given[name] = [row.get(name, default) for row in rows]
        self._write((len(rows),), given)
        self._collected = []

    def _write(self, shape: tuple[int, ...], values: Mapping[str, npt.ArrayLike]) -> None:
        """Write rows after those already written."""
        if unknown := values.keys() - self._columns.keys():
            raise TypeError(f"no such column: {', '.join(sorted(unknown))}")
        first, count = self._rows, math.prod(shape)
        try:
            for name, given in values.items():
                self._columns[name].put(first, count, shape, given)
        except Exception:
            for column in self._columns.values():
                column.forget(first)
            raise
        self._rows += count


class _Column:
    """One column. Rows from ``_filled`` on have the default value and are not written yet."""

    def __init__(self, name: str, dtype: np.dtype[Any], default: int) -> None:
        self._name, self.default = name, default
        self._values: Integers = np.empty(0, dtype)
        self._filled = 0
        limits = np.iinfo(dtype)
        self._least, self._most = int(limits.min), int(limits.max)

    def put(self, first: int, count: int, shape: tuple[int, ...], given: npt.ArrayLike) -> None:
        """Write the values of ``count`` rows, from row ``first`` on."""
        if isinstance(given, int) and given == self.default:
            return
        values = self._checked(given)
        end = first + count
        if first > self._filled or end > len(self._values):
            self._fill(first, end)
        rows = self._values[first:end]
        (rows if len(shape) == 1 else rows.reshape(shape))[...] = values
        self._filled = end

    def forget(self, first: int) -> None:
        """Drop the rows from ``first`` on."""
        self._filled = min(self._filled, first)

    def whole(self, rows: int) -> Integers:
        """A read-only view of the first ``rows`` rows."""
        self._fill(rows, rows)
        view = self._values[:rows]
        view.flags.writeable = False
        return view

    def _fill(self, to: int, capacity: int) -> None:
        """Write defaults up to row ``to``, and allocate memory for ``capacity`` rows."""
        if capacity > len(self._values):
            room = max(capacity, 2 * self._filled, _FIRST_CAPACITY)
            larger = np.empty(room, self._values.dtype)
            larger[: self._filled] = self._values[: self._filled]
            self._values = larger
        self._values[self._filled : to] = self.default
        self._filled = to

    def _checked(self, given: npt.ArrayLike) -> npt.ArrayLike:
        """Return ``given`` after a check.

        Raises ``UserError`` if values are floats, which numpy would truncate, or do not fit.
        """
        if isinstance(given, int):
            least = most = given
        else:
            given = np.asarray(given)
            if given.dtype == self._values.dtype or given.size == 0:
                return given
            if np.can_cast(given.dtype, self._values.dtype, "safe"):
                return given
            if given.dtype.kind not in "iu":
                raise UserError(f"graph: {self._name} must be integers, got {given.dtype}")
            least, most = int(np.minimum.reduce(given, None)), int(np.maximum.reduce(given, None))
        if least < self._least or most > self._most:
            raise UserError(
                f"graph: {self._name} must be from {self._least} to {self._most}, "
                f"got {least if least < self._least else most}"
            )
        return given
