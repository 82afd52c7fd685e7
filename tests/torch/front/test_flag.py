"""A flag wakes all threads that wait for it, and no thread before it is set."""

from __future__ import annotations

import threading
import time

import pytest

pytest.importorskip("torch")

from byteprophet.torch.front.flag import Flag


def test_it_is_set_for_good() -> None:
    flag = Flag()
    assert not flag.is_set()
    assert not flag.wait(0.0)
    assert not flag.wait(0.01)
    flag.set()
    flag.set()
    assert flag.is_set()
    assert flag.wait(0.0)
    assert flag.wait(0.0)


def test_all_waiting_threads_wake() -> None:
    flag, noted = Flag(), []
    came: list[tuple[bool, bool]] = []

    def wait() -> None:
        is_set = flag.wait(30.0)
        came.append((is_set, bool(noted)))

    threads = [threading.Thread(target=wait) for _ in range(8)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    assert not came
    noted.append(True)
    flag.set()
    for thread in threads:
        thread.join(30.0)
    assert came == [(True, True)] * 8


def test_a_thread_that_gives_up_does_not_take_the_flag_with_it() -> None:
    """Threads with short and long limits wait at once, while the flag is set."""
    assert all(waking_among_impatient() >= 2 for _ in range(200))


def waking_among_impatient() -> int:
    """How many of three threads saw the flag, of which one waits about until it is set."""
    flag = Flag()
    results: list[bool] = []

    def wait(limit_s: float) -> None:
        results.append(flag.wait(limit_s))

    threads = [threading.Thread(target=wait, args=(each,)) for each in (30.0, 0.0005, 30.0)]
    for thread in threads:
        thread.start()
    time.sleep(0.0004)
    flag.set()
    for thread in threads:
        thread.join(30.0)
    assert len(results) == 3
    return sum(results)
