"""Windows: the iterations that are recorded, given by the environment or opened by the script.

``BYTEPROPHET_RECORD_STEPS=10:20`` records iterations 10 to 19, like a Python slice; ``10:`` and
``:20`` are open at one end. Iterations count from 1. Events before the first iteration have number
0, and are recorded only if no window was given.

Threads: the training thread calls ``begin`` and ``end``; any thread calls the rest. The tuple of
windows is only replaced as a whole, so no lock is needed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from byteprophet.errors import UserError
from byteprophet.input_files import whole_number

_NEVER = 1 << 32  # larger than any iteration number in a file
_KEPT = 16  # a script may open any number of windows; those of long ago have been written


class Windows:
    """Pairs of iterations: each window begins with the first and ends before the second."""

    def __init__(self, *windows: tuple[int, int]) -> None:
        self._windows = windows

    @classmethod
    def parse(cls, text: str, name: str) -> Windows:
        """Parses text like ``"10:20"``; ``""`` means everything.

        Raises ``UserError``, which mentions ``name``, if the text is not valid.
        """
        if not text:
            return cls((0, _NEVER))
        begin, colon, end = (part.strip() for part in text.partition(":"))
        first = whole_number(begin) if begin else 1
        stop = whole_number(end) if end else _NEVER
        if not colon or first is None or stop is None or not begin + end:
            raise UserError(f"{name}={text}: must be FIRST:STOP, e.g. 10:20")
        if not 1 <= first < stop <= _NEVER:
            raise UserError(f"{name}={text}: must be FIRST:STOP, from 1, the first below the other")
        return cls((first, stop))

    def __contains__(self, iteration: int) -> bool:
        return any(first <= iteration < stop for first, stop in self._windows)

    def mask(self, iterations: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
        """Which of ``iterations`` are in a window."""
        inside = np.zeros(len(iterations), np.bool_)
        for first, stop in self._windows:
            inside |= (iterations >= first) & (iterations < stop)
        return inside

    def over(self, iteration: int) -> bool:
        """Whether neither ``iteration`` nor a later one is in a window."""
        return all(stop <= iteration for _, stop in self._windows)

    def begin(self, iteration: int) -> None:
        """Opens a window at ``iteration``, unless one is open there."""
        if iteration not in self:
            self._windows = (*self._windows[-_KEPT:], (iteration, _NEVER))

    def end(self, iteration: int) -> None:
        """Closes all windows at ``iteration``, which is not recorded any more."""
        self._windows = tuple(
            (first, min(stop, iteration)) for first, stop in self._windows if first < iteration
        )
