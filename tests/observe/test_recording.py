"""Messages are recorded around windows, however many iterations begin between two looks."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from byteprophet.errors import UserError
from byteprophet.observe.recording import Nearness, role_in
from byteprophet.observe.windows import Windows


def recorded(iterations: Iterable[int], window: tuple[int, int]) -> list[tuple[int, int]]:
    """From which iteration up to which one messages are recorded, looked at in ``iterations``."""
    under_way = 0
    near = Nearness(lambda: under_way, Windows(window))
    on, begin, found = near(), 0, []
    for under_way in iterations:
        if near() != on:
            on = not on
            if on:
                begin = under_way
            else:
                found.append((begin, under_way))
    return found


@pytest.mark.parametrize(
    "looks",
    [
        [0, 0, 7, 15, 23],  # 30 ms each
        [0, 3, 11, 19],
        [0, 1, 1, 1, 1, 1, 1, 9, 17],  # after a slow first one
        [0, 1, 5, 5, 5, 5, 5, 5, 13, 21],  # after a pause
        [*range(9), 9, 9, 9, 10, 10, 10, 11, 11, 12, 13],
    ],
)
def test_all_of_a_window_is_recorded(looks: list[int]) -> None:
    begin, end = recorded(looks, (10, 12))[-1]
    assert begin < 10
    assert end >= 12


def test_what_is_far_is_not_recorded() -> None:
    """By slow iterations, each looked at four times."""
    looks = [iteration for iteration in range(200) for _ in range(4)]
    assert recorded(looks, (100, 102)) == [(98, 103)]


def test_fast_iterations_begin_earlier() -> None:
    assert recorded(range(0, 4000, 25), (1000, 1010)) == [(950, 1025)]


def test_a_role_is_a_name() -> None:
    assert role_in({"BYTEPROPHET_ROLE": "worker-1.0"}) == "worker-1.0"
    assert role_in({"BYTEPROPHET_ROLE": ""}) is role_in({}) is None


@pytest.mark.parametrize("role", ["../../elsewhere", "a/b", "worker-0~2", "a\nb"])
def test_a_role_that_would_write_elsewhere_is_refused(role: str) -> None:
    with pytest.raises(UserError, match="must be a name like worker-0"):
        role_in({"BYTEPROPHET_ROLE": role})
