"""Chooses the settings to try next, and those to keep.

The first trials use ten random candidates, or those that the caller names. Each following trial
uses the candidate with the largest improvement that the Gaussian process expects, as ByteScheduler
does (xi = 0.1 standard deviations of the measurements so far, of the logarithm of the time). The
last trials repeat the candidate with the lowest mean, because the best of many noisy measurements
is usually partly luck. Of the candidates measured more than once, the one with the lowest mean is
kept.

The same seed and measurements give the same trials.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from byteprophet.tune.gaussian import Floats, GaussianProcess, expected_improvement
from byteprophet.tune.space import Settings

RANDOM_TRIALS = 10
CONFIRMING_TRIALS = 3
_MARGIN = 0.1


class Search:
    """Minimises a noisy, positive function of settings in ``trials`` measurements.

    Call ``ask``, measure, and call ``tell``, until ``ask`` returns ``None``. ``trials``: at least
    1. ``first``: candidates to begin with in place of random ones.
    """

    def __init__(
        self,
        candidates: Sequence[Settings],
        trials: int,
        seed: int = 0,
        first: Sequence[Settings] | None = None,
    ) -> None:
        self._candidates = list(candidates)
        self._points = _unit_points(self._candidates)
        self._trials = trials
        self._given = first is not None
        random = np.random.default_rng(seed).permutation(len(self._candidates))[:RANDOM_TRIALS]
        self._first = [
            int(each) for each in (random if first is None else map(self._candidates.index, first))
        ]
        self._chosen: list[int] = []
        self._values: list[float] = []

    @property
    def trial(self) -> int:
        """Number of measurements so far."""
        return len(self._values)

    @property
    def phase(self) -> str:
        """Why the candidate of this trial is tried: random, given, model or confirm."""
        confirming = min(CONFIRMING_TRIALS, self._trials // 4)
        if self.trial >= self._trials - confirming:
            return "confirm"
        if self.trial < len(self._first):
            return "given" if self._given else "random"
        return "model" if len(set(self._chosen)) < len(self._candidates) else "confirm"

    def ask(self) -> Settings | None:
        """The settings to measure now, unchanged until ``tell``; ``None``: all trials are done."""
        if self.trial == self._trials:
            return None
        if len(self._chosen) == self.trial:
            self._chosen.append(self._next())
        return dict(self._candidates[self._chosen[-1]])

    def tell(self, value: float) -> None:
        """Report the measurement of the settings asked for. ``ValueError`` unless positive."""
        if len(self._chosen) == self.trial:
            raise ValueError("tell() without ask()")
        if not 0 < value < math.inf:
            raise ValueError(f"measured {value}: must be positive")
        self._values.append(value)

    def best(self) -> Settings:
        """The settings to keep: lowest mean, of those measured more than once if there are any."""
        twice = {c for c in self._chosen if self._chosen.count(c) > 1}
        return dict(self._candidates[self._lowest(twice or set(self._chosen))])

    def mean(self, settings: Mapping[str, int]) -> float:
        """The mean of the measurements of ``settings``."""
        return self._means()[self._candidates.index(dict(settings))]

    def _next(self) -> int:
        phase = self.phase
        if phase in ("random", "given"):
            return self._first[self.trial]
        if phase == "confirm":
            return self._lowest(set(self._chosen))
        values = np.log(np.array(self._values))
        process = GaussianProcess(self._points[self._chosen], values)
        # The lowest noisy measurement is below the function's value, so use the predictions.
        best = float(process.predict(self._points[self._chosen]).mean.min())
        untried = np.setdiff1d(np.arange(len(self._candidates)), self._chosen)
        prediction = process.predict(self._points[untried])
        gains = expected_improvement(prediction, best, _MARGIN * process.scale)
        return int(untried[np.argmax(gains)])

    def _means(self) -> dict[int, float]:
        measured: dict[int, list[float]] = {}
        for candidate, value in zip(self._chosen, self._values, strict=False):
            measured.setdefault(candidate, []).append(value)
        return {candidate: math.fsum(v) / len(v) for candidate, v in measured.items()}

    def _lowest(self, among: Collection[int]) -> int:
        means = {c: mean for c, mean in self._means().items() if c in among}
        return min(means, key=lambda candidate: (means[candidate], candidate))


def _unit_points(candidates: Sequence[Settings]) -> Floats:
    """Logarithms of the candidates' values, each setting's scaled to [0, 1]: shape (n, d)."""
    points = np.log2([[float(value) for value in each.values()] for each in candidates])
    span = np.ptp(points, axis=0)
    result: Floats = (points - points.min(axis=0)) / np.where(span > 0, span, 1.0)
    return result
