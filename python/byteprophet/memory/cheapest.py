"""The cheapest mixes of recomputed regions that fit a budget; without torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from byteprophet.job.times import Int64Array

_MOST_CHOICES = 16  # so many regions, or groups of them, are decided one by one


def all_mixes(usable: Sequence[bool]) -> Int64Array:
    """All mixes (mixes, regions); of many regions, those that decide for groups of neighbours.

    ``usable``: which regions may be recomputed.
    """
    places = np.flatnonzero(usable)
    groups = min(len(places), _MOST_CHOICES)
    decided = np.arange(1 << groups)[:, None] >> np.arange(groups) & 1
    mixes = np.zeros((1 << groups, len(usable)), dtype=np.int64)
    mixes[:, places] = decided[:, np.arange(len(places)) * groups // max(1, len(places))]
    return mixes


def cheapest(peaks_bytes: Int64Array, costs_ns: Int64Array, limit_bytes: int) -> Int64Array:
    """The places of the mixes that fit, the cheapest first; of equals, the one with most room."""
    fitting = np.flatnonzero(peaks_bytes <= limit_bytes)
    return fitting[np.lexsort((peaks_bytes[fitting], costs_ns[fitting]))]
