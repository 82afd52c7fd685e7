"""Intervals of gains: which noise widens them, and how two estimates become one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from byteprophet.optimize.uncertainty import USUAL, Estimate, of_median, spread_of


def test_two_estimates_are_weighted_by_their_certainty() -> None:
    replayed, tried = Estimate(0.8, 0.1), Estimate(0.9, 0.05)
    both = replayed.averaged(tried)
    assert 0.8 < both.ratio < 0.9
    assert math.log(both.ratio) == pytest.approx((math.log(0.8) + 4 * math.log(0.9)) / 5)
    assert both.unsure < tried.unsure
    same = Estimate(0.8, 0.1).averaged(Estimate(0.8, 0.1))
    assert (same.ratio, same.unsure) == pytest.approx((0.8, 0.1 / math.sqrt(2)))


def test_noise_between_rounds_and_within_a_run_counts() -> None:
    steady = np.full(40, 100_000_000)
    drifting = np.repeat([100, 110, 95, 120], 10) * 1_000_000
    assert spread_of(np.array([1, 2])) == pytest.approx(USUAL)  # too few to say anything
    assert spread_of(steady) < USUAL < spread_of(drifting)
    assert spread_of(steady, (0.9, 0.9, 0.9)) < spread_of(steady, (0.8, 0.9, 1.0))


@pytest.mark.parametrize("rounds", [3, 10])
def test_medians_of_rounds_scatter_as_expected(rounds: int) -> None:
    """Normal noise, 4,000 times so many rounds; three are not yet many, where Laplace is 8% off."""
    noise = np.random.default_rng(1).normal(0, 0.05, (4000, rounds))
    assert np.median(noise, axis=1).std() == pytest.approx(of_median(0.05, rounds), rel=0.1)


@pytest.mark.parametrize("rounds", [1, 2, 9])
def test_intervals_cover_nine_in_ten(rounds: int) -> None:
    """Measured ratios are off by the estimate's own error, and by the noise of the rounds."""
    lot = np.random.default_rng(2)
    estimate, spread = Estimate(1.0, 0.02), 0.06
    half = estimate.half_width(spread, rounds)
    true = lot.normal(0, estimate.unsure, 20_000)
    measured = true + np.median(lot.normal(0, spread, (20_000, rounds)), axis=1)
    assert np.mean(np.abs(measured) <= half) == pytest.approx(0.9, abs=0.01)
