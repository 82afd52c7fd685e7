"""Takes the rows that native code has recorded, as numpy arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from byteprophet.timeline.tables import Rows

_AT_ONCE = 4096  # rows are copied under a lock that the recorder needs, too


def take_all(take: Callable[[int, int], int], dtype: np.dtype[np.void]) -> Rows:
    """All rows that ``take(address, capacity)`` copies. It returns how many it has copied."""
    parts = []
    while True:
        part = np.empty(_AT_ONCE, dtype)
        count = take(part.ctypes.data, _AT_ONCE)
        parts.append(part[:count])
        if count < _AT_ONCE:
            return parts[0] if len(parts) == 1 else np.concatenate(parts)
