"""Gradients made ahead, in pieces, out of turn or again are the same gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch")

from byteprophet.workload import Tensor
from byteprophet.workload.gradient import Patterns, coefficient
from byteprophet.workload.making import PIECE_ELEMENTS, GradientMaker

ELEMENTS = (3, 2 * PIECE_ELEMENTS, PIECE_ELEMENTS + 1, 700)
TENSORS = tuple(Tensor(f"t{i}", 4 * n, 0, 0) for i, n in enumerate(ELEMENTS))
PATTERNS = Patterns(max(ELEMENTS))


def maker() -> GradientMaker:
    return GradientMaker(TENSORS, PATTERNS, rank=2)


def check(position: int, iteration: int, gradient: torch.Tensor) -> None:
    tensor = TENSORS[position]
    scale = coefficient(tensor.name, 2, iteration)
    assert torch.equal(gradient, PATTERNS.pattern(tensor.name, tensor.elements) * scale)


@pytest.mark.parametrize("pieces", range(8))
def test_taken_after_any_number_of_pieces(pieces: int) -> None:
    ahead = maker()
    ahead.prepare(5)
    made = [ahead.make_piece() for _ in range(pieces)]
    assert made == [True] * min(pieces, 6) + [False] * (pieces - 6)
    for position in (3, 2, 1, 0):
        check(position, 5, ahead.take(position, 5))
    assert not ahead.make_piece()


def test_pieces_between_takes() -> None:
    ahead = maker()
    ahead.prepare(1)
    for position in (3, 2, 1, 0):
        ahead.make_piece()
        check(position, 1, ahead.take(position, 1))


def test_out_of_turn_and_again() -> None:
    ahead = maker()
    ahead.prepare(1)
    ahead.make_piece()
    ahead.make_piece()  # the first half of position 2
    for position in (1, 2, 3, 3, 0):
        check(position, 1, ahead.take(position, 1))


def test_another_iteration_than_the_one_prepared() -> None:
    ahead = maker()
    ahead.prepare(1)
    while ahead.make_piece():
        pass
    check(2, 0, ahead.take(2, 0))
    ahead.prepare(2)
    check(2, 2, ahead.take(2, 2))


def test_nothing_is_made_before_it_is_asked_for() -> None:
    assert not maker().make_piece()


def test_gradients_are_nobody_elses() -> None:
    ahead = maker()
    ahead.prepare(0)
    first, second = ahead.take(3, 0), ahead.take(3, 0)
    first.zero_()
    check(3, 0, second)
