"""How far a measured gain may be from the predicted one, and why.

Three things decide, all as standard deviations of the logarithm of a ratio of times:

- *The replay.* It is wrong by its error for jobs that ran, and by ``MODEL`` for what was changed:
  recorded jobs foretell other buckets and runtimes so well (``experiments/foretold.py``).
- *Runs.* Two runs of one job in turn differ (``spread``): other programs, caches, and the order in
  which threads get cores. ``USUAL`` is what is expected before anything ran; rounds of trials, and
  the drift within the recorded run, say more.
- *What is compared.* The measured gain will have the same noise, as rounds of ``--apply`` have it.

If a candidate ran, its measured ratio and the replayed one are two estimates of one thing. They are
averaged with the inverse of their variances as weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from byteprophet.job.times import Int64Array

MODEL = 0.03
USUAL = 0.03
_USUAL_COUNTS = 3
"""As how many observations ``USUAL`` counts."""
_BLOCKS = 4
ROUNDS = 2
"""How many rounds ``--apply`` runs if nothing is said."""
_MEDIAN = math.pi / 2
"""The variance of a median of many over that of a mean (Laplace)."""
_OF_NINETY_PERCENT = 1.645


@dataclass(frozen=True)
class Estimate:
    """``ratio``: of times, optimised over recorded. ``unsure``: its standard deviation."""

    ratio: float
    unsure: float

    def averaged(self, other: Estimate) -> Estimate:
        """Both estimates as one."""
        own, others = self.unsure**-2, other.unsure**-2
        logs = (own * math.log(self.ratio) + others * math.log(other.ratio)) / (own + others)
        return Estimate(math.exp(logs), (own + others) ** -0.5)

    def half_width(self, spread: float, rounds: int) -> float:
        """Half of the 90% interval, as a share of the ratio, of what ``rounds`` will measure."""
        return _OF_NINETY_PERCENT * math.hypot(self.unsure, of_median(spread, rounds))


def spread_of(recorded_ns: Int64Array, ratios: Sequence[float] = ()) -> float:
    """By how much a ratio of two runs in turn differs from one pair to the next.

    ``recorded_ns``: iterations of the recorded run. ``ratios``: of the rounds of a trial.
    """
    logs = np.log(np.array(ratios)) if len(ratios) else np.zeros(1)
    squares = float(((logs - logs.mean()) ** 2).sum())
    count = _USUAL_COUNTS + len(logs) - 1
    if len(recorded_ns) >= 2 * _BLOCKS:
        blocks = np.array_split(recorded_ns.astype(np.float64), _BLOCKS)
        drift = np.log([np.median(block) for block in blocks])
        squares += float(((drift - drift.mean()) ** 2).sum())
        count += _BLOCKS - 1
    return math.sqrt((_USUAL_COUNTS * USUAL**2 + squares) / count)


def of_median(spread: float, rounds: int) -> float:
    """The standard deviation of the median of so many rounds."""
    return spread * (1.0 if rounds < 3 else math.sqrt(_MEDIAN)) / math.sqrt(rounds)
