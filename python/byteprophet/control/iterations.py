"""How long iterations took, from when they began."""

from __future__ import annotations

from collections.abc import Iterable


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
