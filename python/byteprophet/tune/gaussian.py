"""A Gaussian process and expected improvement, for a few dozen noisy measurements.

The kernel is Matern 5/2 with one length per dimension. Values are standardised, so the kernel's
variance is 1. Lengths and noise maximise the posterior density. Their wide log-normal priors keep a
handful of points from being explained as pure noise or as unrelated. Inputs are in [0, 1].

This takes a hundred lines on scipy. Optuna's GPSampler would bring torch, SQLAlchemy and a search
of a continuous space. Here, the model can be evaluated at all candidates, and equal inputs give
equal results.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.optimize import minimize
from scipy.special import ndtr

Floats = npt.NDArray[np.float64]

_LENGTH, _NOISE = 0.5, 0.1  # modes of the priors; noise as a standard deviation
_SPREAD = 1.0  # of their logarithms
_BOUNDS_LENGTH, _BOUNDS_NOISE = (0.05, 10.0), (1e-3, 1.0)
_JITTER = 1e-8


@dataclass(frozen=True)
class Prediction:
    """Mean and standard deviation of the noiseless function, shape (points,)."""

    mean: Floats
    deviation: Floats


class GaussianProcess:
    """Fitted to ``points``, shape (n, dimensions), and ``values``, shape (n,); n at least 1."""

    def __init__(self, points: Floats, values: Floats) -> None:
        self._points = points
        self._offset = float(values.mean())
        self._scale = float(values.std()) or 1.0
        self._values = (values - self._offset) / self._scale
        dimensions = points.shape[1]
        start = np.log([_LENGTH] * dimensions + [_NOISE])
        found = minimize(
            self._loss,
            start,
            jac=True,
            method="L-BFGS-B",
            bounds=[tuple(np.log(_BOUNDS_LENGTH))] * dimensions + [tuple(np.log(_BOUNDS_NOISE))],
            options={"maxiter": 30},
        )
        self._lengths, self._noise = np.exp(found.x[:-1]), float(np.exp(found.x[-1]))
        self._factor = cho_factor(self._covariance(self._lengths, self._noise), lower=True)
        self._weights = cho_solve(self._factor, self._values)

    @property
    def noise(self) -> float:
        """Standard deviation of one measurement."""
        return self._noise * self._scale

    @property
    def scale(self) -> float:
        """Standard deviation of the measurements."""
        return self._scale

    def predict(self, points: Floats) -> Prediction:
        """The prediction at ``points``, shape (m, dimensions)."""
        cross = _matern(points, self._points, self._lengths)
        solved = solve_triangular(self._factor[0], cross.T, lower=True)
        variance = np.maximum(0.0, 1.0 - np.sum(solved**2, axis=0))
        return Prediction(
            cross @ self._weights * self._scale + self._offset, np.sqrt(variance) * self._scale
        )

    def _covariance(self, lengths: Floats, noise: float) -> Floats:
        kernel = _matern(self._points, self._points, lengths)
        return kernel + (noise**2 + _JITTER) * np.eye(len(kernel))

    def _loss(self, logarithms: Floats) -> tuple[float, Floats]:
        """Negative logarithm of the posterior density of lengths and noise, and its gradient.

        ``logarithms``: of the lengths, then of the noise.
        """
        lengths, noise = np.exp(logarithms[:-1]), float(np.exp(logarithms[-1]))
        factor = cho_factor(self._covariance(lengths, noise), lower=True)
        inverse = cho_solve(factor, np.eye(len(self._values)))
        weights = inverse @ self._values
        usual = np.log([_LENGTH] * len(lengths) + [_NOISE])
        apart = (logarithms - usual) / _SPREAD
        loss = self._values @ weights / 2 + np.sum(np.log(np.diag(factor[0]))) + apart @ apart / 2
        difference = (self._points[:, None, :] - self._points[None, :, :]) / lengths
        distance = _distance(difference)
        common = 5.0 / 3.0 * (1.0 + distance) * np.exp(-distance)
        change = inverse - np.outer(weights, weights)  # half of it: of the loss by the covariance
        by_length = np.einsum("ij,ijd->d", change * common, difference**2) / 2
        by_noise = np.trace(change) * noise**2
        return float(loss), np.append(by_length, by_noise) + apart / _SPREAD


def expected_improvement(prediction: Prediction, best: float, margin: float) -> Floats:
    """The expected amount by which each point's value is below ``best - margin``.

    0 for a point whose value is known to be higher. ``margin`` is xi in the literature.
    """
    gain = best - margin - prediction.mean
    known = prediction.deviation <= 0
    deviation = np.where(known, 1.0, prediction.deviation)
    ratio = gain / deviation
    density = np.exp(-(ratio**2) / 2) / math.sqrt(2 * math.pi)
    expected = gain * ndtr(ratio) + deviation * density
    result: Floats = np.maximum(0.0, np.where(known, gain, expected))
    return result


def _matern(one: Floats, other: Floats, lengths: Floats) -> Floats:
    distance = _distance((one[:, None, :] - other[None, :, :]) / lengths)
    result: Floats = (1.0 + distance + distance**2 / 3.0) * np.exp(-distance)
    return result


def _distance(difference: Floats) -> Floats:
    """Distance of points with ``difference``, shape (n, m, dimensions), times the root of 5."""
    result: Floats = np.sqrt(5.0 * np.sum(difference**2, axis=2))
    return result
