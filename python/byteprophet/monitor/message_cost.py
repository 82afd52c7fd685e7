"""Computes the fixed cost of a message by regression of times on sizes.

A message of s bytes takes ``cost + s / bandwidth``. Only different sizes can separate the two
terms. If sizes do not differ, or if noise hides the difference, the result is None.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from byteprophet.order_statistics import median, quantile

Floats = npt.NDArray[np.float64]

MOST_PAIRS = 20_000
_FEWEST = 12  # small messages, and large ones
SMALL = 0.25  # messages up to this fraction of the largest count as small
_SURE_NS = 20e3


def fit_line(sizes: Floats, times_ns: Floats) -> float | None:
    """Nanoseconds per byte: the median slope over pairs of different size (Theil and Sen).

    Up to 29% of the points may be outliers. None if there are no such pairs.
    """
    step = 1 + len(sizes) * len(sizes) // (2 * MOST_PAIRS)
    size_steps, time_steps = [], []
    # All pairs at every `step`-th distance; for long arrays, this is a fair sample of all pairs.
    for distance in range(1, len(sizes), step):
        size_steps.append(sizes[distance:] - sizes[:-distance])
        time_steps.append(times_ns[distance:] - times_ns[:-distance])
    if not size_steps:
        return None
    across, up = np.concatenate(size_steps), np.concatenate(time_steps)
    # Almost equal sizes say nothing about the slope, only how noisy the times are.
    differ = np.abs(across) > SMALL * float(sizes.max())
    return median(up[differ] / across[differ]) if differ.any() else None


def message_cost_ns(sizes: Floats, times_ns: Floats) -> float | None:
    """The time in ns that a message takes whatever its size; None if it cannot be known.

    ``sizes`` (bytes) and ``times_ns`` are of messages that followed one another on a busy link.
    """
    if len(sizes) < 2 * _FEWEST:
        return None
    small = sizes <= SMALL * float(sizes.max())
    if min(int(small.sum()), int((~small).sum())) < _FEWEST:
        return None
    slope = fit_line(sizes, times_ns)
    if slope is None or slope <= 0:
        return None
    # Small messages are used, because an error of the slope matters least for them.
    costs = times_ns[small] - slope * sizes[small]
    cost = median(costs)
    unsure = 2 * spread(costs) / float(np.sqrt(len(costs)))
    return max(0.0, cost) if unsure < max(_SURE_NS, cost / 2) else None


def spread(values: Floats) -> float:
    """The standard deviation of a normal distribution with these quartiles."""
    return (quantile(values, 0.75) - quantile(values, 0.25)) / 1.349
