"""What real trials teach about the engine's error: a pairwise ranker on a few features.

The engine predicts log times e. Trials measure log times m of some candidates. What is learned is
the residual m - e as a linear function w of a candidate's features. Only differences between
candidates count, because all share an offset that ranks nothing: for each pair of trials, the
difference of the residuals is fitted by the difference of the features (ridge regression). A prior
of width 0 around w = 0 keeps the engine's order where trials say nothing: with no trial, the ranker
is the engine. How much the ridge weighs is chosen by trials that are left out in turn, so that what
is learned is used only as far as it foretells other trials. AutoDist's ranker learns times from
nothing; this one learns what is wrong with a model that knows most.

``error`` is how far the learned times are off for a trial that was left out: the root mean square
over all trials, of log times, and so about a relative error.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_RIDGES = (0.1, 1.0, 10.0, 1000.0)
"""The square of the noise of a trial over that of weights, in units of standardised features. With
the last one, the ranker keeps the engine's order."""
LEAST_ERROR = 0.01
"""Two runs of one job differ by about as much."""
_UNTAUGHT_ERROR = 0.05
"""The engine's error where fewer than three trials tell of it."""


@dataclass(frozen=True, eq=False)
class Ranker:
    """What trials taught.

    Attributes:
        mean: of the features of all candidates, shape (features,).
        spread: their standard deviation, (features,).
        weights: of standardised features, (features,).
        offset: m - e of a candidate with mean features.
        error: see the top of this file.
    """

    mean: Floats
    spread: Floats
    weights: Floats
    offset: float = 0.0
    error: float = _UNTAUGHT_ERROR

    def log_ns(self, features: Floats, engine_ns: Floats) -> Floats:
        """The learned log times of candidates with ``features`` (n, features)."""
        learned: Floats = np.log(engine_ns) + self.offset + self._scaled(features) @ self.weights
        return learned

    def _scaled(self, features: Floats) -> Floats:
        scaled: Floats = (features - self.mean) / self.spread
        return scaled


def fitted(pool: Floats, features: Floats, engine_ns: Floats, measured_ns: Floats) -> Ranker:
    """The ranker that ``measured_ns`` of n trials teaches.

    Args:
        pool: the features of all candidates, shape (candidates, features): their spread scales.
        features: those of the trials, (n, features); n may be 0.
        engine_ns: what the engine says of them, (n,).
        measured_ns: what they took, (n,).
    """
    mean, spread = pool.mean(axis=0), pool.std(axis=0)
    spread = np.where(spread > 0, spread, 1.0)
    residual = np.log(measured_ns) - np.log(engine_ns)
    scaled = (features - mean) / spread
    trials = len(residual)
    if not trials:
        return Ranker(mean, spread, np.zeros(pool.shape[1]))
    error, ridge = _UNTAUGHT_ERROR, _RIDGES[0]
    if trials > 2:
        least, ridge = min((_left_out_error(scaled, residual, each), each) for each in _RIDGES)
        error = max(LEAST_ERROR, least)
    weights = _pairwise(scaled, residual, ridge)
    offset = float(np.mean(residual - scaled @ weights))
    return Ranker(mean, spread, weights, offset, error)


def _pairwise(scaled: Floats, residual: Floats, ridge: float) -> Floats:
    """The weights that explain the differences between all pairs of trials."""
    first, other = np.triu_indices(len(residual), 1)
    of_features, of_residuals = scaled[first] - scaled[other], residual[first] - residual[other]
    # Every trial is in n - 1 pairs: divided by n, the ridge weighs as in an ordinary regression.
    count = len(residual)
    normal = of_features.T @ of_features / count + ridge * np.eye(scaled.shape[1])
    found: Floats = np.linalg.solve(normal, of_features.T @ of_residuals / count)
    return found


def _left_out_error(scaled: Floats, residual: Floats, ridge: float) -> float:
    errors = []
    for left_out in range(len(residual)):
        kept = np.arange(len(residual)) != left_out
        weights = _pairwise(scaled[kept], residual[kept], ridge)
        offset = np.mean(residual[kept] - scaled[kept] @ weights)
        errors.append(residual[left_out] - offset - scaled[left_out] @ weights)
    return float(np.sqrt(np.mean(np.square(errors))))
