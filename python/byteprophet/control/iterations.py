"""How long iterations took, and tensors' priorities, out of recorded transfers.

An iteration begins with its first ready gradient and ends where the next one begins. As transfers
come in the order of completion, a start is certain once two later iterations have shown.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_KEPT = 64
_MOST_UNTOLD = 1000


class Iterations:
    """Not thread safe; its user holds a lock."""

    def __init__(self) -> None:
        self._starts_ns: dict[int, int] = {}
        self._told = -1  # the last iteration that was reported
        self._untold: list[tuple[int, int]] = []
        self.priorities: dict[int, int] = {}  # by tensor number

    def take(self, transfers: NDArray[Any]) -> None:
        """``transfers``: of timeline.transfers.TRANSFER, in order of completion."""
        if len(transfers) == 0:
            return
        numbers, inverse = np.unique(transfers["iteration"], return_inverse=True)
        starts_ns = np.full(len(numbers), np.iinfo(np.int64).max)
        np.minimum.at(starts_ns, inverse, transfers["ready_ns"])
        for number, start_ns in zip(numbers.tolist(), starts_ns.tolist(), strict=True):
            self._starts_ns[number] = min(start_ns, self._starts_ns.get(number, start_ns))
        tensors, first = np.unique(transfers["key"] >> np.uint64(16), return_index=True)
        priorities = transfers["priority"][first]
        self.priorities.update(zip(tensors.tolist(), priorities.tolist(), strict=True))
        self._finish()

    def drain(self) -> list[tuple[int, int]]:
        """Iteration and nanoseconds of those that are certain and were not drained before."""
        untold, self._untold = self._untold, []
        return untold

    def put_back(self, times: list[tuple[int, int]]) -> None:
        """What was drained and could not be told."""
        self._untold = (times + self._untold)[-_MOST_UNTOLD:]

    def _finish(self) -> None:
        last = max(self._starts_ns)
        for number in sorted(self._starts_ns):
            if self._told < number <= last - 2 and number + 1 in self._starts_ns:
                took_ns = self._starts_ns[number + 1] - self._starts_ns[number]
                self._told = number
                if took_ns >= 0:
                    self._untold.append((number, took_ns))
        del self._untold[:-_MOST_UNTOLD]
        for number in sorted(self._starts_ns)[:-_KEPT]:
            del self._starts_ns[number]
