"""Which iterations are recorded: windows, as the environment gives them or the script opens them.

``BYTEPROPHET_RECORD_STEPS=10:20``: from the 10th iteration up to the 20th, which is left out, as
Python slices have it; ``10:`` and ``:20`` are open at one end. Iterations count from 1; what was
before the first has 0, and is recorded only if no window was given.

Threads: ``begin`` and ``end`` in the thread that trains, the rest anywhere. The tuple of windows is
replaced as a whole, so nobody needs a lock.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from byteprophet.errors import UserError

_NEVER = 1 << 32  # beyond what files can say
_KEPT = 16  # a script may open any number of windows; what it recorded long ago is written


class Windows:
    """Pairs of iterations: recorded from the first, up to the second."""

    def __init__(self, *windows: tuple[int, int]) -> None:
        self._windows = windows

    @classmethod
    def parse(cls, text: str, name: str) -> Windows:
        """``"10:20"``; everything for ``""``. ``UserError`` with ``name`` for what is not such."""
        if not text:
            return cls((0, _NEVER))
        begin, colon, end = (part.strip() for part in text.partition(":"))
        numbers = [int(part) for part in (begin, end) if part.isdecimal()]
        if not colon or len(numbers) != bool(begin) + bool(end) or not numbers:
            raise UserError(f"{name}={text}: must be FIRST:STOP, e.g. 10:20")
        first, stop = int(begin or 1), int(end or _NEVER)
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
        """Record from ``iteration`` on."""
        if iteration not in self:
            self._windows = (*self._windows[-_KEPT:], (iteration, _NEVER))

    def end(self, iteration: int) -> None:
        """Record what is before ``iteration``, and no more."""
        self._windows = tuple(
            (first, min(stop, iteration)) for first, stop in self._windows if first < iteration
        )
