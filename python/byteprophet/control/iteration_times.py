"""How long iterations took, as workers report it.

No clock, no socket: the issuer adds what workers report (``issue.py``), and all that compare or
expect iterations' times read it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Set

_USUAL = 20  # iterations
_KEPT = 240  # iterations: what is compared on both sides of a change, and as many again


class IterationTimes:
    """The times of the iterations that were reported last; ``len`` is their number."""

    def __init__(self) -> None:
        # By iteration, then worker; in the order of the last report. Numbers may begin again.
        self._took_ns: dict[int, dict[str, int]] = {}

    def __len__(self) -> int:
        """The number of iterations that some worker has reported."""
        return len(self._took_ns)

    def add(self, worker: str, times: Iterable[tuple[int, int]]) -> None:
        """``worker`` reports pairs of an iteration's number and the nanoseconds that it took."""
        for iteration, took_ns in times:
            by_worker = self._took_ns.pop(iteration, {})
            by_worker[worker] = took_ns
            self._took_ns[iteration] = by_worker
        while len(self._took_ns) > _KEPT:
            del self._took_ns[next(iter(self._took_ns))]

    def usual_ns(self) -> int | None:
        """The median over workers and the iterations reported last; None if there are none."""
        recent = list(self._took_ns.values())[-_USUAL:]
        times = [took_ns for by_worker in recent for took_ns in by_worker.values()]
        return int(statistics.median(times)) if times else None

    def slowest_ns(self, first: int, end: int, workers: Set[str]) -> list[int]:
        """The slowest worker's times of iterations that all ``workers`` have reported.

        The iterations are those from ``first`` on, before ``end``.
        """
        return [
            max(by_worker.values())
            for iteration, by_worker in self._took_ns.items()
            if first <= iteration < end and workers <= by_worker.keys()
        ]
