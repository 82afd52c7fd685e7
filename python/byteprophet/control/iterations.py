"""Computes the durations of iterations from the times at which they began."""

from __future__ import annotations

from collections.abc import Iterable


class Iterations:
    """Remembers the last iteration between calls."""

    def __init__(self) -> None:
        self._last: tuple[int, int] | None = None

    def between(self, starts: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """The number and duration (ns, start to start) of each iteration that ended.

        ``starts``: the iterations that have begun since the last call, and their start times. An
        iteration ends when the next one begins.
        """
        took: list[tuple[int, int]] = []
        for iteration, start_ns in starts:
            if self._last is not None and self._last[0] == iteration - 1:
                took.append((iteration - 1, start_ns - self._last[1]))
            self._last = (iteration, start_ns)
        return took
