"""Packed numbers, exact dot products, orthogonal rows."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

from byteprophet.torch.compressors.bits import pack, packed_bytes, unpack
from byteprophet.torch.compressors.orthogonal import dot, orthogonalise


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("count", [1, 7, 8, 9, 1000])
def test_numbers_survive_and_take_as_many_bits(bits: int, count: int) -> None:
    numbers = torch.randint(0, 1 << bits, (count,), dtype=torch.uint8)
    packed = pack(numbers, bits)
    assert packed.dtype == torch.uint8
    assert len(packed) == packed_bytes(count, bits) == math.ceil(count / 8) * bits
    assert torch.equal(unpack(packed, count, bits), numbers)


def test_the_first_number_has_the_lowest_bits() -> None:
    assert pack(torch.tensor([1, 0, 1], dtype=torch.uint8), 1).tolist() == [0b101]
    assert pack(torch.tensor([5, 2, 7], dtype=torch.uint8), 3).tolist() == [0b11010101, 0b1, 0]


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_a_dot_product_is_exact_to_a_double(scale: float) -> None:
    torch.manual_seed(0)
    one, other = torch.randn(3000) * scale, torch.randn(3000)
    exact = sum(
        Fraction(a) * Fraction(b) for a, b in zip(one.tolist(), other.tolist(), strict=True)
    )
    assert dot(one, other) == pytest.approx(float(exact), rel=1e-14)


def test_a_dot_product_has_the_same_bits_in_any_order() -> None:
    torch.manual_seed(1)
    one, other = torch.randn(5000), torch.randn(5000) * 10.0 ** torch.randint(-6, 6, (5000,))
    expected = dot(one, other)
    for _ in range(5):
        order = torch.randperm(5000)
        assert dot(one[order], other[order]) == expected
    assert dot(torch.zeros(3), torch.ones(3)) == 0.0


def test_rows_become_orthonormal_and_those_that_depend_on_others_zero() -> None:
    torch.manual_seed(2)
    rows = torch.randn(5, 40)
    rows[3] = 2 * rows[0] - rows[1]
    span = rows.clone()
    orthogonalise(rows)
    expected = torch.diag(torch.tensor([1.0, 1.0, 1.0, 0.0, 1.0]))
    torch.testing.assert_close(rows @ rows.T, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(span @ rows.T @ rows, span, rtol=0, atol=1e-4)


def test_nearly_parallel_rows_become_orthogonal() -> None:
    torch.manual_seed(3)
    base = torch.randn(100)
    rows = torch.stack([base, base + 1e-4 * torch.randn(100)])
    orthogonalise(rows)
    assert abs(float(rows[0] @ rows[1])) < 1e-5
