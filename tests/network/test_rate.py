from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteprophet.errors import UserError
from byteprophet.network import format_rate, parse_rate, payload_bps
from byteprophet.network.rate import SLOWEST_BPS


@pytest.mark.parametrize(
    ("text", "rate_bps"),
    [
        ("1gbit", 1_000_000_000),
        ("500mbit", 500_000_000),
        ("2.5gbit", 2_500_000_000),
        ("2.3gbit", 2_300_000_000),
        ("64kbit", 64_000),
        ("8bit", 8),
        (" 1GBit ", 1_000_000_000),
        ("unlimited", None),
    ],
)
def test_rates_as_people_write_them(text: str, rate_bps: int | None) -> None:
    assert parse_rate(text) == rate_bps


@pytest.mark.parametrize(
    "text", ["1gbyte", "1gb", "1", "", "gbit", "-1gbit", "0mbit", "8.5bit", "1e3mbit", "1 gbit x"]
)
def test_a_wrong_rate_is_told_with_examples(text: str) -> None:
    with pytest.raises(UserError) as raised:
        parse_rate(text)
    assert str(raised.value) == (
        f"bandwidth {text!r} is not a rate: use e.g. 500mbit, 1gbit, unlimited"
    )


@pytest.mark.parametrize("text", ["1bit", "7bit", "0.007kbit"])
def test_a_rate_without_a_byte_per_second_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=f"link '{text}' is too slow: use at least 8bit"):
        parse_rate(text, "link")
    assert payload_bps(SLOWEST_BPS)


@pytest.mark.parametrize("text", ["2000000gbit", "9" * 5000 + "bit"])
def test_a_rate_that_no_link_has_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="is too fast: use at most 1125899906842624bit"):
        parse_rate(text)


def test_digits_are_ascii() -> None:
    with pytest.raises(UserError, match="is not a rate"):
        parse_rate("\uff11gbit")


@given(st.none() | st.integers(min_value=SLOWEST_BPS, max_value=10**13))
def test_format_is_parsed_back(rate_bps: int | None) -> None:
    assert parse_rate(format_rate(rate_bps)) == rate_bps


def test_format_is_short() -> None:
    assert format_rate(2_500_000_000) == "2.5gbit"
    assert format_rate(500_000_000) == "500mbit"
    assert format_rate(100_000_000_000) == "100gbit"
