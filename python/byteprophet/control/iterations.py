"""How long iterations took, and tensors' priorities: what the client's reports are made of.

Threads: ``Priorities.take`` is called by the observer's thread, the rest by the client's. Updating
a dict, and reading one entry, are each one step to others.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from byteprophet.timeline.transfers import Transfers, tensor_of


class Iterations:
    """Remembers where the last call ended."""

    def __init__(self) -> None:
        self._last: tuple[int, int] | None = None

    def between(self, starts: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Iteration and nanoseconds, start to start, of those that ended with one of ``starts``.

        ``starts``: iterations that began since the last call, and when.
        """
        took: list[tuple[int, int]] = []
        for iteration, start_ns in starts:
            if self._last is not None and self._last[0] == iteration - 1:
                took.append((iteration - 1, start_ns - self._last[1]))
            self._last = (iteration, start_ns)
        return took


class Priorities:
    """By tensor number, as far as its transfers were recorded."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}

    def take(self, transfers: Transfers) -> None:
        """``transfers``: of TRANSFER."""
        if len(transfers):
            tensors, first = np.unique(tensor_of(transfers), return_index=True)
            priorities = transfers["priority"][first]
            self._known.update(zip(tensors.tolist(), priorities.tolist(), strict=True))

    def of(self, tensor: int) -> int | None:
        """None if it is not known."""
        return self._known.get(tensor)
