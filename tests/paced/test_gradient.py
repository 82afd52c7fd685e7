"""The gradients that the job makes against the formula in their documentation."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from byteprophet.paced.gradient import Patterns, coefficient  # noqa: E402


@given(st.text(max_size=20), st.integers(1, 2000))
def test_pattern(name: str, elements: int) -> None:
    crc = zlib.crc32(name.encode())
    expected = [((crc + j) % 255 - 127) / 128 for j in range(elements)]
    patterns = Patterns(2000)
    assert patterns.pattern(name, elements).tolist() == expected
    assert patterns.initial(name, elements).tolist() == [value / 16 for value in expected]


@given(st.text(max_size=20), st.integers(0, 10**6), st.integers(0, 10**9))
def test_coefficient(name: str, rank: int, iteration: int) -> None:
    crc = zlib.crc32(name.encode())
    expected = (1 + (crc + 3 * rank + 5 * iteration) % 7) / 8
    assert coefficient(name, rank, iteration) == expected


def test_neighbouring_iterations_and_ranks_differ() -> None:
    values = {coefficient("w", rank, 0) for rank in range(7)}
    assert len(values) == 7
    assert len({coefficient("w", 0, iteration) for iteration in range(7)}) == 7


@given(st.permutations(range(9)))
def test_sums_over_ranks_are_exact_in_any_order(ranks: list[int]) -> None:
    pattern = Patterns(255).pattern("w", 255).numpy()
    total = np.zeros(255, dtype=np.float32)
    for rank in ranks:
        total += pattern * np.float32(coefficient("w", rank, 4))
    exact = pattern.astype(np.float64) * sum(coefficient("w", rank, 4) for rank in range(9))
    assert (total.astype(np.float64) == exact).all()
