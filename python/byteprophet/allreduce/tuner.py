"""Searches for the best bucket size while the job trains, as DeAR does.

It uses Bayesian optimisation with expected improvement (``tune/search.py``) on the logarithm of the
times, so doubling all times gives the same choices. There are few trials. The last ones measure the
best size again, which then stays. One rank decides: it receives the slowest rank's time of every
iteration, and all ranks receive the size. The caller does both exchanges.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from byteprophet.allreduce.groups import BUCKET_BYTES
from byteprophet.tune.search import Search

TRIALS = 10
ITERATIONS_PER_TRIAL = 10
SETTLING = 2
"""Iterations of a trial that are not measured, as buckets of the previous one are in flight."""

_NAME = "bucket_bytes"


class BucketTuner:
    """Chooses one of ``candidates``, sizes in bytes in ascending order, in ``trials`` trials.

    It is deterministic: the same times give the same sizes. The first trials use the candidates at
    one sixth, one half and five sixths of the list. Raises ``ValueError`` if there is no candidate,
    no trial, or no measured iteration in a trial.
    """

    def __init__(
        self,
        candidates: Sequence[int] = BUCKET_BYTES,
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
        """Whether the search has ended and the size no longer changes."""
        return self._done

    def observe(self, slowest_iteration_ns: int) -> bool:
        """Note the time of an iteration with the current size.

        ``slowest_iteration_ns`` is the time of the slowest rank; it must be positive. Returns True
        if the current size has changed. Does nothing once the search has ended.
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
