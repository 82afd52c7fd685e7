"""What scripts share: options that are numbers, and rates of links."""

from __future__ import annotations

import argparse
import math

import pytest
from script import check_least, link_bps, numbers, ratios

from byteprophet.errors import UserError
from byteprophet.network import payload_bps


def test_numbers_are_read_in_order_and_once() -> None:
    assert numbers("2, 1,2", "--slow", int, 1, 3) == [2, 1]
    assert ratios("0.01,100") == [0.01, 100]


@pytest.mark.parametrize("text", ["0", "101", "inf", "nan", "x", "1,-1"])
def test_numbers_out_of_range_are_refused(text: str) -> None:
    with pytest.raises(UserError, match=f"--ratios '{text}': must be numbers from 0.01 to 100"):
        ratios(text)


def test_an_all_reduce_takes_the_ratio_of_the_compute() -> None:
    """Of 100 MB, four workers send 150 MB each: at 1.2 Gbit/s of payload they take a second."""
    assert payload_bps(link_bps(100_000_000, 4, 2.0, 500_000_000)) == pytest.approx(1.2e9)


@pytest.mark.parametrize("value", [0, -1, math.inf, math.nan])
def test_options_that_are_too_small_are_refused(value: float) -> None:
    options = argparse.Namespace(rounds=1, budget_s=value)
    check_least(options, rounds=1)
    with pytest.raises(UserError, match=f"--budget-s {value}: must be at least 1"):
        check_least(options, rounds=1, budget_s=1)
