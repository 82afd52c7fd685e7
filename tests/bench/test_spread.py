"""Ratios and their intervals against what is known of normal noise."""

from __future__ import annotations

import numpy as np
import pytest

from byteprophet.bench.spread import combine, geometric_mean, largest, least, median, ratio


def test_values_are_ratios_of_medians_averaged_geometrically() -> None:
    assert ratio([([2, 8, 100], [4, 4, 4])]).value == pytest.approx(2)
    assert ratio([([8], [4]), ([2], [4])]).value == pytest.approx(1)
    assert ratio([([1, 2, 9], [2])], np.mean).value == pytest.approx(2)


def test_no_noise_no_interval() -> None:
    low, high = ratio([([6, 6], [3, 3]), ([6], [3])]).interval
    assert low == pytest.approx(2)
    assert high == pytest.approx(2)


def test_rounds_that_differ_widen_the_interval() -> None:
    low, high = ratio([([10, 10], [10, 10]), ([20, 20], [10, 10])]).interval
    assert low == pytest.approx(1)
    assert high == pytest.approx(2)


def test_the_interval_of_a_mean_covers_the_truth_in_95_of_100_cases() -> None:
    generator = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        times = generator.normal(100, 10, 100)
        low, high = ratio([(list(times), [100.0])], np.mean).interval
        covered += low <= 1 <= high
    assert 180 <= covered <= 199


def test_figures_over_cells() -> None:
    ratios = [ratio([([value], [1])]) for value in (1, 2, 8)]
    assert combine(ratios, geometric_mean).value == pytest.approx(16 ** (1 / 3))
    assert combine(ratios, median).value == pytest.approx(2)
    assert combine(ratios, least).interval == pytest.approx((1, 1))
    assert combine(ratios, largest).interval == pytest.approx((8, 8))


def test_cells_are_independent() -> None:
    """The mean of many noisy cells is less noisy than one cell; it was not, with one seed."""
    cells = [ratio([([90, 110], [100])], np.mean) for _ in range(16)]
    one_low, one_high = cells[0].interval
    low, high = combine(cells, geometric_mean).interval
    assert high - low < 0.5 * (one_high - one_low)
