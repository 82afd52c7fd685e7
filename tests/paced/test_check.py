"""The expected parameters against the documented formulas, element by element."""

from __future__ import annotations

import hashlib
import struct
import zlib
from fractions import Fraction

import numpy as np
import pytest

from byteprophet.paced.check import expected_parameters, parameters_sha256
from byteprophet.workload import Tensor, Workload

TENSORS = (Tensor("a.weight", 4 * 700, 0, 0), Tensor("é", 4, 0, 0), Tensor("b", 4 * 255, 0, 0))
WORKLOAD = Workload("w", 1, TENSORS)


def exact(name: str, j: int, workers: int, updates: int) -> Fraction:
    crc = zlib.crc32(name.encode())
    pattern = Fraction((crc + j) % 255 - 127, 128)
    value = pattern / 16
    for t in range(updates):
        total = sum(pattern * Fraction(1 + (crc + 3 * r + 5 * t) % 7, 8) for r in range(workers))
        value -= Fraction(1, 16) * total / workers
    return value


@pytest.mark.parametrize("workers", [1, 2, 4, 8])
@pytest.mark.parametrize("updates", [0, 1, 30])
def test_exact_where_the_number_of_workers_is_a_power_of_two(workers: int, updates: int) -> None:
    expected = dict(expected_parameters(WORKLOAD, workers, updates))
    assert list(expected) == [tensor.name for tensor in TENSORS]
    for tensor in TENSORS:
        values = expected[tensor.name]
        assert values.dtype == np.float32
        assert values.shape == (tensor.elements,)
        for j in {0, tensor.elements // 2, tensor.elements - 1}:
            assert Fraction(float(values[j])) == exact(tensor.name, j, workers, updates)


def test_stays_exact_for_a_thousand_updates_of_sixteen_workers() -> None:
    (_, values), *_ = expected_parameters(WORKLOAD, 16, 1000)
    j = int(np.abs(values).argmax())
    assert Fraction(float(values[j])) == exact("a.weight", j, 16, 1000)


def test_three_workers_round_once_per_division() -> None:
    (_, values), *_ = expected_parameters(WORKLOAD, 3, 30)
    for j in (0, 1, 699):
        assert float(values[j]) == pytest.approx(float(exact("a.weight", j, 3, 30)), rel=1e-5)


def test_hash_is_over_little_endian_bytes_in_order() -> None:
    a, b = np.array([1.5, -2.0], np.float32), np.array([0.25], np.float32)
    raw = struct.pack("<3f", 1.5, -2.0, 0.25)
    assert parameters_sha256([("x", a), ("y", b)]) == hashlib.sha256(raw).hexdigest()
    assert parameters_sha256([("y", b), ("x", a)]) != parameters_sha256([("x", a), ("y", b)])


def test_hash_refuses_other_types() -> None:
    with pytest.raises(TypeError, match="parameter 'x' is float64, must be float32"):
        parameters_sha256([("x", np.zeros(3))])  # type: ignore[list-item]
