"""Sizes as users write them."""

from __future__ import annotations

import pytest

from byteprophet.cli.sizes import parse_size
from byteprophet.errors import UserError


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("1", 1), ("8GiB", 8 << 30), ("500 MB", 500_000_000), ("1.5kib", 1536), ("2tb", 2 * 10**12)],
)
def test_units(text: str, size_bytes: int) -> None:
    assert parse_size(text, "--memory-budget") == size_bytes


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1e9", "8 G", "0", "0.1B", "1" * 16, "٣"])
def test_others_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="--memory-budget"):
        parse_size(text, "--memory-budget")
