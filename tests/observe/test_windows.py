"""Windows of iterations: what is in them, read and opened by the script."""

from __future__ import annotations

import numpy as np
import pytest

from byteprophet.errors import UserError
from byteprophet.observe.windows import Windows

NUMBERS = np.arange(30, dtype=np.uint32)


def members(windows: Windows) -> list[int]:
    inside = [n for n in NUMBERS.tolist() if n in windows]
    assert NUMBERS[windows.mask(NUMBERS)].tolist() == inside
    return inside


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", range(30)),
        ("10:20", range(10, 20)),
        ("10:", range(10, 30)),
        (" 1 : 2 ", range(1, 2)),
        (":3", range(1, 3)),
    ],
)
def test_read(text: str, expected: range) -> None:
    windows = Windows.parse(text, "X")
    assert members(windows) == list(expected)
    last = expected[-1]
    assert windows.over(last + 1) == (last < 29)
    assert not windows.over(last)


@pytest.mark.parametrize(
    "text", ["10", ":", "a:b", "20:10", "5:5", "0:3", "-1:3", "1:2:3", "1.5:3", "9" * 5000 + ":"]
)
def test_others_are_refused(text: str) -> None:
    with pytest.raises(UserError, match=f"X={text}: must be FIRST:STOP"):
        Windows.parse(text, "X")


def test_opened_and_ended_by_the_script() -> None:
    windows = Windows()
    assert members(windows) == []
    windows.begin(3)
    windows.begin(4)  # it is open already
    windows.end(6)
    windows.begin(9)
    windows.end(12)
    windows.end(20)
    assert members(windows) == [3, 4, 5, 9, 10, 11]
    windows.end(10)
    assert members(windows) == [3, 4, 5, 9]
