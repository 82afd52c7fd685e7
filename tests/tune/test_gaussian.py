"""The Gaussian process and expected improvement against closed forms and numerical integration."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import check_grad

from byteprophet.tune.gaussian import GaussianProcess, Prediction, expected_improvement


def grid(*sizes: int) -> np.ndarray:
    axes = [np.linspace(0, 1, size) for size in sizes]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(sizes))


def test_the_gradient_is_that_of_the_loss() -> None:
    random = np.random.default_rng(1)
    process = GaussianProcess(random.random((9, 3)), random.random(9))
    for logarithms in np.log(random.uniform(0.05, 2.0, (5, 4))):
        error = check_grad(lambda x: process._loss(x)[0], lambda x: process._loss(x)[1], logarithms)
        assert error < 1e-4 * (1 + np.linalg.norm(process._loss(logarithms)[1]))


def test_one_point_is_its_own_mean_and_tells_nothing_far_away() -> None:
    process = GaussianProcess(np.array([[0.0, 0.0]]), np.array([7.0]))
    near, far = process.predict(np.array([[0.0, 0.0], [1.0, 1.0]])).deviation
    assert process.predict(np.array([[0.0, 0.0], [1.0, 1.0]])).mean == pytest.approx([7.0, 7.0])
    assert near < 0.2 < far <= 1.0


@given(st.integers(0, 10_000))
@settings(max_examples=30)
def test_equals_the_textbook_formulas(seed: int) -> None:
    """Mean and variance by explicit inverse of the covariance that the process settled on."""
    random = np.random.default_rng(seed)
    points, values = random.random((8, 2)), random.random(8) * 5 + 3
    asked = random.random((5, 2))
    process = GaussianProcess(points, values)

    def kernel(one: np.ndarray, other: np.ndarray) -> float:
        r = math.sqrt(sum(((one - other) / process._lengths) ** 2))
        return (1 + math.sqrt(5) * r + 5 * r * r / 3) * math.exp(-math.sqrt(5) * r)

    scale, noise = values.std(), process.noise / values.std()
    known = np.array([[kernel(a, b) for b in points] for a in points])
    inverse = np.linalg.inv(known + (noise**2 + 1e-8) * np.eye(8))
    cross = np.array([[kernel(a, b) for b in points] for a in asked])
    mean = cross @ inverse @ ((values - values.mean()) / scale) * scale + values.mean()
    variance = 1 - np.einsum("ij,jk,ik->i", cross, inverse, cross)
    prediction = process.predict(asked)
    assert prediction.mean == pytest.approx(mean, rel=1e-5, abs=1e-5)
    assert prediction.deviation == pytest.approx(np.sqrt(variance) * scale, rel=1e-3, abs=1e-4)


@given(st.floats(-3, 3), st.floats(0.01, 3), st.floats(-3, 3), st.floats(0, 1))
@settings(max_examples=60)
def test_expected_improvement_equals_the_integral(
    mean: float, deviation: float, best: float, margin: float
) -> None:
    def gain(value: float) -> float:
        density = math.exp(-(((value - mean) / deviation) ** 2) / 2)
        return (best - margin - value) * density / (deviation * math.sqrt(2 * math.pi))

    low, high = min(mean, best) - 12 * deviation - 1, best - margin
    expected = quad(gain, low, high, points=[min(mean, high)], limit=200)[0] if high > low else 0
    prediction = Prediction(np.array([mean]), np.array([deviation]))
    (result,) = expected_improvement(prediction, best, margin)
    assert result == pytest.approx(expected, rel=1e-4, abs=1e-7)


def test_expected_improvement_of_what_is_known() -> None:
    prediction = Prediction(np.array([1.0, 3.0]), np.array([0.0, 0.0]))
    assert expected_improvement(prediction, 2.0, 0.25) == pytest.approx([0.75, 0.0])


def test_learns_which_dimension_matters_and_how_noisy_it_is() -> None:
    random = np.random.default_rng(3)
    points = random.random((60, 2))
    values = np.sin(6 * points[:, 0]) + 0.05 * random.standard_normal(60)
    process = GaussianProcess(points, values)
    assert process._lengths[1] > 3 * process._lengths[0]
    assert 0.02 < process.noise < 0.1
    asked = grid(9, 3)
    truth = np.sin(6 * asked[:, 0])
    assert np.abs(process.predict(asked).mean - truth).max() < 0.25


def test_the_same_measurements_do_not_break_it() -> None:
    points = np.array([[0.5, 0.5]] * 6 + [[0.1, 0.9]] * 6)
    values = np.array([2.0] * 12)
    prediction = GaussianProcess(points, values).predict(grid(3, 3))
    assert np.isfinite(prediction.mean).all()
    assert np.isfinite(prediction.deviation).all()
