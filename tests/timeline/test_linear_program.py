"""Linear programs put together in pieces have the solutions that a textbook gives."""

from __future__ import annotations

import numpy as np
import pytest

from byteprophet.timeline.linear_program import LinearProgram


def test_corner_of_a_polygon() -> None:
    program = LinearProgram()
    x, y = program.variable(lower=0.0), program.variable(lower=0.0)
    program.rows([x, y], np.array([[1.0, 2.0], [3.0, 1.0]]), np.array([4.0, 7.0]))
    # x + 2y <= 4 and 3x + y <= 7 meet at (2, 1).
    assert program.minimise({x: -1.0, y: -1.0}) == pytest.approx([2.0, 1.0])
    assert program.minimise({y: -1.0}) == pytest.approx([0.0, 2.0])
    program.upper[x] = 1.0
    assert program.minimise({x: -1.0, y: -1.0}) == pytest.approx([1.0, 1.5])


def test_a_variable_named_twice_counts_with_the_sum() -> None:
    program = LinearProgram()
    x = program.variable()
    program.rows([x, x], np.array([[1.0, 1.0]]), np.array([6.0]))
    assert program.minimise({x: -1.0}) == pytest.approx([3.0])


def test_bounds_alone() -> None:
    program = LinearProgram()
    x = program.variable(-3.0, 5.0)
    assert program.minimise({x: 1.0}) == pytest.approx([-3.0])


def test_nothing_is_least() -> None:
    program = LinearProgram()
    x = program.variable()
    with pytest.raises(RuntimeError, match="not solved"):
        program.minimise({x: 1.0})
