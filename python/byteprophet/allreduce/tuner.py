"""The buffer size of fixed-size groups, searched while the job trains, as DeAR does.

Bayesian optimisation with expected improvement (``tune/search.py``), on the logarithm of the times:
times twice as long give the same choices. Trials are few, the last of them measure what looks best
again, and then the best size stays. One rank decides: it is told every iteration's time, that of
the slowest rank, and says the size to all; exchanging both is the caller's.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from byteprophet.allreduce.groups import BUFFER_BYTES
from byteprophet.tune.search import Search

TRIALS = 10
ITERATIONS_PER_TRIAL = 10
SETTLING = 2
"""Iterations of a trial that are not measured: groups of the trial before are still under way."""

_NAME = "buffer_bytes"


class BufferTuner:
    """Chooses from ``candidates``, bytes in ascending order, in ``trials`` trials.

    Deterministic: the same times give the same sizes. The first trials are at a sixth, half and
    five sixths of the candidates. ValueError where nothing can be chosen or measured.
    """

    def __init__(
        self,
        candidates: Sequence[int] = BUFFER_BYTES,
        trials: int = TRIALS,
        iterations_per_trial: int = ITERATIONS_PER_TRIAL,
    ) -> None:
        if not candidates or trials < 1 or iterations_per_trial <= SETTLING:
            raise ValueError(
                f"{len(candidates)} candidates, {trials} trials of {iterations_per_trial} "
                f"iterations: one, one and {SETTLING + 1} are the least"
            )
        settings = [{_NAME: size_bytes} for size_bytes in candidates]
        first = sorted({len(candidates) * part // 6 for part in (1, 3, 5)})
        self._search = Search(settings, trials, first=[settings[place] for place in first])
        self._iterations = iterations_per_trial
        self._times_ns: list[int] = []
        self._done = False
        self._current = self._next()

    @property
    def current(self) -> int:
        """The size to use from now on."""
        return self._current

    @property
    def done(self) -> bool:
        """Whether the size stays as it is."""
        return self._done

    def observe(self, slowest_iteration_ns: int) -> bool:
        """Take the time of an iteration with the current size; whether that has changed by it.

        ``slowest_iteration_ns``: of the slowest rank, positive. Once done, nothing changes.
        """
        if self._done:
            return False
        self._times_ns.append(slowest_iteration_ns)
        if len(self._times_ns) < self._iterations:
            return False
        self._search.tell(float(median(self._times_ns[SETTLING:])))
        self._times_ns.clear()
        before, self._current = self._current, self._next()
        return self._current != before

    def _next(self) -> int:
        asked = self._search.ask()
        self._done = asked is None
        return (asked or self._search.best())[_NAME]
