"""Levelled shares reach the optimum of the linear program over all shares, most evenly."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from byteprophet.allreduce.levelled import levelled

RATES = st.lists(st.integers(1, 12), min_size=3, max_size=6)


def loads(rates: list[int], weights: tuple[int, ...]) -> list[Fraction]:
    """How long each link is busy, in each direction, with an all-reduce of a byte."""
    ranks, all_ = len(rates), sum(weights)
    return [
        (1 + (ranks - 2) * Fraction(weight, all_)) / rate
        for weight, rate in zip(weights, rates, strict=True)
    ]


@settings(max_examples=100)
@given(RATES)
def test_no_shares_are_faster(rates: list[int]) -> None:
    """Against HiGHS, and against the bound in closed form."""
    ranks = len(rates)
    busiest = max(loads(rates, levelled(rates).weights))
    assert busiest == max(Fraction(1, min(rates)), Fraction(2 * (ranks - 1), sum(rates)))
    # Variables: the shares, and the time.
    limits = np.hstack([np.eye(ranks) * (ranks - 2), -np.array(rates, float)[:, None]])
    found = linprog(
        [*[0] * ranks, 1],
        A_ub=limits,
        b_ub=-np.ones(ranks),
        A_eq=[[*[1] * ranks, 0]],
        b_eq=[1],
    )
    assert found.fun == pytest.approx(float(busiest), rel=1e-9)


@settings(max_examples=50)
@given(st.lists(st.integers(1, 5), min_size=3, max_size=4))
def test_no_shares_have_more_even_loads(rates: list[int]) -> None:
    """Sorted loads, the busiest first: none are smaller, in steps of a twelfth."""
    ours = sorted(loads(rates, levelled(rates).weights), reverse=True)
    for weights in product(range(13), repeat=len(rates)):
        if sum(weights) == 12:
            assert sorted(loads(rates, weights), reverse=True) >= ours


@pytest.mark.parametrize(
    ("rates", "weights"),
    [
        ([10**9] * 4, (1, 1, 1, 1)),
        ([10**9] * 3 + [5 * 10**8], (1, 1, 1, 0)),
        ([25, 25, 50, 50], (0, 0, 1, 1)),
        ([2, 2, 1], (1, 1, 0)),
        ([3, 3, 3, 2], (7, 7, 7, 1)),
        ([1, 2], (1, 1)),
        ([5], (1,)),
        ([1, 0, 0], (0, 1, 1)),
    ],
)
def test_cases_by_hand(rates: list[int], weights: tuple[int, ...]) -> None:
    assert levelled(rates).weights == weights


@given(st.lists(st.integers(8, 1 << 50), min_size=3, max_size=40))
def test_any_rates_give_weights_near_the_optimum(rates: list[int]) -> None:
    ranks = len(rates)
    busiest = max(loads(rates, levelled(rates).weights))
    least = max(Fraction(1, min(rates)), Fraction(2 * (ranks - 1), sum(rates)))
    assert busiest <= least * (1 + Fraction(ranks * ranks, 1 << 16))
