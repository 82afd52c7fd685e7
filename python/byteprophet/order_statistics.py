"""What np.unique, np.median and np.quantile say of short lists of numbers, in less time; groups.

The three import numpy.ma when they are first called, which takes longer than most that commands ask
of them, and np.quantile's checks take 50 µs per call.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

_Values = TypeVar("_Values", bound=np.generic)


def distinct(values: npt.NDArray[_Values]) -> npt.NDArray[_Values]:
    """The different values, or rows, of a one-dimensional array, sorted."""
    ordered = np.sort(values)
    first = np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]
    found: npt.NDArray[_Values] = ordered[first]
    return found


def groups(*columns: npt.NDArray[Any]) -> list[npt.NDArray[np.int64]]:
    """The indices of rows that are equal in all ``columns``, one array per group.

    ``columns``: one or more, of equal lengths. Groups are in ascending order of the columns'
    values, the first column first, and the indices of a group in ascending order. All rows are
    sorted once; a mask for each value would look at all rows for each.
    """
    order = np.lexsort(columns[::-1])
    differs = np.zeros(max(0, len(order) - 1), np.bool_)
    for column in columns:
        ordered = column[order]
        differs |= ordered[1:] != ordered[:-1]
    found: list[npt.NDArray[np.int64]] = np.split(order, np.flatnonzero(differs) + 1)
    return found if len(order) else []


def quantile(values: npt.NDArray[Any], share: float) -> float:
    """The value below which ``share`` (0 to 1) of the values are, bit for bit np.quantile's.

    ``values``: one or more finite numbers.
    """
    ordered = np.sort(values)
    place = (len(ordered) - 1) * share
    below = int(place)
    low, high = float(ordered[below]), float(ordered[min(below + 1, len(ordered) - 1)])
    weight = place - below
    if weight >= 0.5:
        return high - (high - low) * (1 - weight)
    return low + (high - low) * weight


def median(values: npt.ArrayLike) -> float:
    """The middle value, or the mean of the two in the middle, bit for bit np.median's.

    ``values``: one or more finite numbers.
    """
    ordered = np.sort(values)
    below, above = (len(ordered) - 1) // 2, len(ordered) // 2
    return (float(ordered[below]) + float(ordered[above])) / 2
