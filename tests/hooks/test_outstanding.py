"""Waiting for outstanding operations before the job is suspended."""

from __future__ import annotations

import pytest

from byteprophet.errors import UserError
from byteprophet.hooks.outstanding import wait_for_all


def test_waits_until_all_are_done_or_gone() -> None:
    handles = {1: "a", 2: "b", 3: "c"}
    asked: list[int] = []

    def is_done(handle: int) -> bool:
        asked.append(handle)
        if handle == 2 and asked.count(2) == 2:
            del handles[2]  # another thread synchronized it
            raise ValueError("Handle 2 was not created or has been cleared.")
        return handle != 2 and asked.count(handle) == 3

    wait_for_all("suspend", handles, is_done)
    assert asked == [1, 1, 1, 2, 2, 3, 3, 3]


def test_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BYTEPROPHET_TIMEOUT_S", "0.05")
    with pytest.raises(RuntimeError, match=r"shutdown: waited 0\.05 s for push_pull operations"):
        wait_for_all("shutdown", {1: "a"}, lambda _handle: False)


def test_a_time_limit_that_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BYTEPROPHET_TIMEOUT_S", "soon")
    with pytest.raises(UserError, match="BYTEPROPHET_TIMEOUT_S=soon: must be a number of seconds"):
        wait_for_all("shutdown", {1: "a"}, lambda _handle: True)
