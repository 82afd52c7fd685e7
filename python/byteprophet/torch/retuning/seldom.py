"""After which steps ranks exchange what may change during a job."""

from __future__ import annotations

_LONGEST = 16  # the largest number of steps between two exchanges


class Seldom:
    """Counts steps. The first exchange follows the first step.

    The number of steps between exchanges then doubles, up to 16, because links change seldom and an
    exchange costs messages.
    """

    def __init__(self) -> None:
        self._step, self._next, self._interval = -1, 0, 1

    def due(self) -> bool:
        """Whether an exchange follows the step that has just ended. Called once after each step."""
        self._step += 1
        if self._step < self._next:
            return False
        self._interval = min(2 * self._interval, _LONGEST)
        self._next = self._step + self._interval
        return True
