"""Ratios of measured iteration times, with their noise.

A ratio is taken within a round, where both sides ran one after the other, and averaged over rounds
(geometrically). A two-step bootstrap estimates its noise: it resamples rounds, and within a round
the iterations of each side. With a single round, only iterations are resampled. Those of one job
resemble each other, so the interval is then too narrow. Ratios of different cells are independent.
So the noise of a figure over cells (mean, least, largest) is that figure of their resampled values.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

DRAWS = 2000
_LEVEL_PERCENT = (2.5, 97.5)

Array = npt.NDArray[np.float64]
_Key = TypeVar("_Key", bound=Hashable)
Round = tuple[Sequence[float], Sequence[float]]
"""Iteration times of both sides in one round: numerator, denominator."""


@dataclass(frozen=True)
class Ratio:
    """A ratio, and ``DRAWS`` resampled values of it."""

    value: float
    draws: Array

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% interval."""
        low, high = np.percentile(self.draws, _LEVEL_PERCENT)
        return float(low), float(high)


def ratio(rounds: Sequence[Round], centre: Callable[..., Any] = np.median) -> Ratio:
    """Numerator over denominator; at least one round, none empty. The same input gives equal draws.

    ``centre``: reduces the iterations of a job to one value, ``np.median`` or ``np.mean``.
    """
    generator = np.random.default_rng(0)
    values = [np.log(centre(above) / centre(below)) for above, below in rounds]
    draws = np.array(
        [
            np.log(_drawn(generator, above, centre) / _drawn(generator, below, centre))
            for above, below in rounds
        ]
    )
    chosen = generator.integers(len(rounds), size=(len(rounds), DRAWS))
    picked = draws[chosen, generator.integers(DRAWS, size=chosen.shape)]
    return Ratio(float(np.exp(np.mean(values))), np.exp(picked.mean(axis=0)))


def of_shared_rounds(
    above: Mapping[_Key, Sequence[float]],
    below: Mapping[_Key, Sequence[float]],
    centre: Callable[..., Any] = np.median,
) -> Ratio | None:
    """``ratio`` of two sides' iteration times by round; None if they share no round."""
    rounds = [(times, below[key]) for key, times in above.items() if key in below]
    return ratio(rounds, centre) if rounds else None


def combine(ratios: Sequence[Ratio], how: Callable[[Array], Array]) -> Ratio:
    """A figure over cells: ``how`` takes an array of shape (cells, n) to one of shape (n,)."""
    value = how(np.array([[each.value] for each in ratios]))
    # All ratios were resampled with the same random numbers; shuffling makes them independent.
    shuffled = [np.random.default_rng(n).permutation(each.draws) for n, each in enumerate(ratios)]
    return Ratio(float(value[0]), how(np.array(shuffled)))


def geometric_mean(values: Array) -> Array:
    """Over the first axis."""
    result: Array = np.exp(np.log(values).mean(axis=0))
    return result


def median(values: Array) -> Array:
    """Over the first axis."""
    result: Array = np.median(values, axis=0)
    return result


def least(values: Array) -> Array:
    """Over the first axis."""
    result: Array = values.min(axis=0)
    return result


def largest(values: Array) -> Array:
    """Over the first axis."""
    result: Array = values.max(axis=0)
    return result


def _drawn(
    generator: np.random.Generator, times: Sequence[float], centre: Callable[..., Any]
) -> Array:
    """Centres of ``DRAWS`` samples drawn from ``times`` with replacement."""
    array = np.asarray(times, dtype=np.float64)
    picked = array[generator.integers(len(array), size=(DRAWS, len(array)))]
    result: Array = centre(picked, axis=1)
    return result
