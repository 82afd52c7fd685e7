"""What np.unique, np.median and np.quantile say of short lists of numbers, in less time.

These import numpy.ma when they are first called, which takes longer than most that commands ask of
them, and np.quantile's checks take 50 µs per call.
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
