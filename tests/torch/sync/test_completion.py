"""Waits for one call of a synchroniser."""

from __future__ import annotations

import threading

import pytest

from byteprophet.errors import TimedOut
from byteprophet.torch.sync import completion
from byteprophet.torch.sync.completion import STEP, Completion
from byteprophet.torch.sync.patience import Patience


class Late:
    """Waits for rank 1."""

    rank = 0

    def awaited(self, name: str) -> str:
        return f"of rank 1 nothing has come of {name}"

    def late(self, name: str) -> list[int]:
        return [1]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    short = Patience()
    short.limit_s = 0.1
    monkeypatch.setattr(completion, "_patience", short)


def test_a_long_wait_says_for_whom(capfd: pytest.CaptureFixture[str]) -> None:
    def wait(takes_s: float) -> str:
        done = Completion("forward order of rank 0", STEP)
        threading.Timer(takes_s, done, (None,)).start()
        done.wait(60, Late(), "order")
        return capfd.readouterr().err

    assert wait(1.0) == (
        "byteprophet: warning: rank 0 has waited 0.1 s for the forward order of rank 0: of rank 1 "
        "nothing has come of order\n"
    )
    assert wait(0.5) == ""  # this takes no longer than before


@pytest.mark.parametrize("timeout_s", [0.05, 0.3])
def test_a_wait_has_an_end(timeout_s: float) -> None:
    done = Completion("forward order of rank 0", STEP)
    message = rf"waited {timeout_s:g} s for the forward order.*; rank 1 has not called step\(\) as"
    with pytest.raises(TimedOut, match=message):
        done.wait(timeout_s, Late(), "order")
