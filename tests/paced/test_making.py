"""Gradients made ahead, in pieces, out of turn or again are the same gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch")

from byteprophet.paced.gradient import Patterns, coefficient
from byteprophet.paced.making import PIECE_ELEMENTS, GradientMaker, quotas
from byteprophet.workload import Tensor, Workload

ELEMENTS = (3, 2 * PIECE_ELEMENTS, PIECE_ELEMENTS + 1, 700)
TENSORS = tuple(Tensor(f"t{i}", 4 * n, 0, 0) for i, n in enumerate(ELEMENTS))
PATTERNS = Patterns(max(ELEMENTS))
ALL = sum(ELEMENTS)


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
    made = [ahead.make_piece(ALL) for _ in range(pieces)]
    assert made == [True] * min(pieces, 6) + [False] * (pieces - 6)
    for position in (3, 2, 1, 0):
        check(position, 5, ahead.take(position, 5))
    assert not ahead.make_piece(ALL)


def test_pieces_between_takes() -> None:
    ahead = maker()
    ahead.prepare(1)
    for position in (3, 2, 1, 0):
        ahead.make_piece(ALL)
        check(position, 1, ahead.take(position, 1))


def test_out_of_turn_and_again() -> None:
    ahead = maker()
    ahead.prepare(1)
    ahead.make_piece(ALL)
    ahead.make_piece(ALL)  # the first half of position 2
    for position in (1, 2, 3, 3, 0):
        check(position, 1, ahead.take(position, 1))


def test_another_iteration_than_the_one_prepared() -> None:
    ahead = maker()
    ahead.prepare(1)
    while ahead.make_piece(ALL):
        pass
    check(2, 0, ahead.take(2, 0))
    ahead.prepare(2)
    check(2, 2, ahead.take(2, 2))


def test_nothing_is_made_before_it_is_asked_for() -> None:
    assert not maker().make_piece(ALL)


def test_gradients_are_nobody_elses() -> None:
    ahead = maker()
    ahead.prepare(0)
    first, second = ahead.take(3, 0), ahead.take(3, 0)
    first.zero_()
    check(3, 0, second)


def test_no_more_than_the_quota_and_a_piece() -> None:
    ahead = maker()
    ahead.prepare(0)
    made = []
    for quota in (0, 1, 700, 701, 701 + PIECE_ELEMENTS):
        made.append(0)
        while ahead.make_piece(quota):
            made[-1] += 1
    assert made == [0, 1, 0, 1, 1]
    ahead.prepare(1)
    assert ahead.make_piece(1)


@pytest.mark.parametrize("bursts", [(None,) * 4, (0, 0, 1, 1), (0, 0, 0, 0)])
@pytest.mark.parametrize("forward_ns", [(10, 20, 30, 40), (0, 0, 0, 0)])
@pytest.mark.parametrize("backward_ns", [(400, 1, 0, 7), (1, 1, 900, 1)])
def test_quotas_grow_evenly_and_suffice(
    bursts: tuple[int | None, ...], forward_ns: tuple[int, ...], backward_ns: tuple[int, ...]
) -> None:
    given = zip(ELEMENTS, forward_ns, backward_ns, bursts, strict=True)
    tensors = tuple(
        Tensor(f"t{i}", 4 * elements, forward, backward, burst)
        for i, (elements, forward, backward, burst) in enumerate(given)
    )
    workload = Workload("w", 1, tensors)
    found = quotas(workload)
    assert (found[0].backward, len(found)) == (ALL, 4)
    # Along the time line of the device: what is there, and when.
    there, times_ns, needed, exact = [0], [0], 0, False
    for position, tensor in enumerate(tensors):
        there.append(found[position].forward)
        times_ns.append(times_ns[-1] + tensor.forward_ns)
    answering = {burst.start: burst for burst in workload.bursts()}
    for position in (3, 2, 1, 0):
        if position in answering:
            needed += sum(tensors[member].elements for member in answering[position])
            assert there[-1] >= needed or times_ns[-1] == 0
            exact |= there[-1] <= needed + 1
        there.append(found[position].backward)
        times_ns.append(times_ns[-1] + tensors[position].backward_ns)
    assert there == sorted(there)
    if forward_ns[0]:
        assert exact  # no slower rate would do
        rate = there[1] / times_ns[1]
        for elements, time_ns in zip(there, times_ns, strict=True):
            assert abs(elements - min(ALL, rate * time_ns)) <= 2 + rate
