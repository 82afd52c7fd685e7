"""What one message costs beyond its bytes, by regression of times on sizes.

A message of s bytes takes ``cost + s / bandwidth``. Only sizes that differ can tell the two apart:
where they do not, or where noise hides the difference, the answer is None.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

MOST_PAIRS = 20_000
_FEWEST = 12  # of small ones, and of large ones
SMALL = 0.25  # of the largest: what counts as small
_SURE_NS = 20e3


def fit_line(sizes: Floats, times_ns: Floats) -> float | None:
    """Nanoseconds per byte: the median slope over all pairs of different size (Theil and Sen).

    Up to 29% of the points may be anywhere. None without pairs.
    """
    step = 1 + len(sizes) * len(sizes) // (2 * MOST_PAIRS)
    size_steps, time_steps = [], []
    # All pairs at every `step`-th distance: of long arrays a fair part of the pairs.
    for distance in range(1, len(sizes), step):
        size_steps.append(sizes[distance:] - sizes[:-distance])
        time_steps.append(times_ns[distance:] - times_ns[:-distance])
    if not size_steps:
        return None
    across, up = np.concatenate(size_steps), np.concatenate(time_steps)
    # Almost equal sizes say nothing about the slope but how noisy the times are.
    differ = np.abs(across) > SMALL * float(sizes.max())
    return float(np.median(up[differ] / across[differ])) if differ.any() else None


def message_cost_ns(sizes: Floats, times_ns: Floats) -> float | None:
    """The time that a message takes whatever its size; None where it cannot be known.

    ``sizes`` (bytes) and ``times_ns``: of messages that followed each other on a busy link.
    """
    if len(sizes) < 2 * _FEWEST:
        return None
    small = sizes <= SMALL * float(sizes.max())
    if min(int(small.sum()), int((~small).sum())) < _FEWEST:
        return None
    slope = fit_line(sizes, times_ns)
    if slope is None or slope <= 0:
        return None
    # The small ones': there, an error of the slope matters least.
    costs = times_ns[small] - slope * sizes[small]
    cost = float(np.median(costs))
    unsure = 2 * spread(costs) / float(np.sqrt(len(costs)))
    return max(0.0, cost) if unsure < max(_SURE_NS, cost / 2) else None


def spread(values: Floats) -> float:
    """The standard deviation of a normal distribution with these quartiles."""
    return float(np.subtract(*np.percentile(values, [75, 25])) / 1.349)
