"""The observer: everybody gets everything, in one thread, and is closed; nobody holds it up."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from byteprophet.observe import Observer
from byteprophet.timeline.tables import TRANSFER, Transfers

LIMIT_S = 20.0


class Source:
    """A plug-in whose transfers a test makes."""

    def __init__(self) -> None:
        self.recording: list[int] = []
        self._lock = threading.Lock()
        self._made = 0
        self._taken = 0

    def make(self, count: int) -> None:
        with self._lock:
            self._made += count

    def record_transfers(self, every: int) -> None:
        self.recording.append(every)

    def take_transfers(self) -> Transfers:
        with self._lock:
            transfers = np.zeros(self._made - self._taken, TRANSFER)
            transfers["key"] = np.arange(self._taken, self._made)
            self._taken = self._made
        return transfers


class Keeper:
    """A consumer that keeps all it is given."""

    def __init__(self, every: int = 1) -> None:
        self.every = every
        self.keys: list[int] = []
        self.calls: list[str] = []
        self.threads: set[str] = set()

    def take(self, transfers: Transfers) -> None:
        self.keys += transfers["key"].tolist()
        self.calls.append("take")
        self.threads.add(threading.current_thread().name)

    def close(self) -> None:
        self.calls.append("close")
        self.threads.add(threading.current_thread().name)


def wait_until(holds: Callable[[], bool]) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.005)


def test_all_get_all_in_order_and_are_closed_once() -> None:
    source, keepers = Source(), [Keeper(), Keeper()]
    observer = Observer(source, keepers, period_s=0.01)
    observer.start()
    for count in (1, 0, 50, 3):
        source.make(count)
        time.sleep(0.02)
    source.make(7)  # just before the end
    observer.close()
    observer.close()
    for keeper in keepers:
        assert keeper.keys == list(range(61))
        assert keeper.calls.count("close") == 1
        assert keeper.calls[-1] == "close"
        assert keeper.threads == {"byteprophet-observer"}
    assert source.recording == [1, 0]


def test_the_most_demanding_decides_what_is_recorded() -> None:
    source, one, other = Source(), Keeper(every=16), Keeper(every=4)
    observer = Observer(source, [one, other], period_s=0.01)
    observer.start()
    assert source.recording == [4]
    other.every = 0
    wait_until(lambda: source.recording[-1] == 16)
    one.every = 0
    wait_until(lambda: source.recording[-1] == 0)
    other.every = 1
    wait_until(lambda: source.recording[-1] == 1)
    observer.close()
    assert source.recording == [4, 16, 0, 1, 0]


def test_one_that_fails_is_named_once_and_left_out(capfd: pytest.CaptureFixture[str]) -> None:
    class Failing(Keeper):
        def take(self, transfers: Transfers) -> None:
            super().take(transfers)
            raise ZeroDivisionError("of nothing")

    source, failing, keeper = Source(), Failing(), Keeper()
    observer = Observer(source, [failing, keeper], period_s=0.01)
    observer.start()
    wait_until(lambda: keeper.calls.count("take") > 3)
    source.make(5)
    observer.close()
    assert failing.calls == ["take"]
    assert keeper.keys == list(range(5))
    said = capfd.readouterr().err
    assert said == (
        "byteprophet: warning: Failing stopped observing: ZeroDivisionError: of nothing\n"
    )


def test_one_that_fails_turns_off_what_records_for_it(capfd: pytest.CaptureFixture[str]) -> None:
    class Failing(Keeper):
        def take(self, transfers: Transfers) -> None:
            raise OSError("disk full")

        def abandon(self) -> None:
            self.calls.append("abandon")

    failing, keeper = Failing(), Keeper()
    observer = Observer(Source(), [failing, keeper], period_s=0.01)
    observer.start()
    wait_until(lambda: keeper.calls.count("take") > 3)
    observer.close()
    assert failing.calls == ["abandon"]
    assert capfd.readouterr().err.count("stopped observing") == 1


def test_all_are_closed_when_one_cannot_be(capfd: pytest.CaptureFixture[str]) -> None:
    class Failing(Keeper):
        def close(self) -> None:
            raise OSError("disk full")

    keeper = Keeper()
    observer = Observer(Source(), [Failing(), keeper], period_s=0.01)
    observer.start()
    observer.close()
    assert keeper.calls[-1] == "close"
    assert capfd.readouterr().err.count("stopped observing") == 1


def test_keeps_no_process_alive() -> None:
    code = """
import numpy as np
from byteprophet.observe import Observer
from byteprophet.timeline.tables import TRANSFER
class Source:
    def record_transfers(self, every): pass
    def take_transfers(self): return np.zeros(0, TRANSFER)
class Keeper:
    def take(self, transfers): pass
    def close(self): pass
Observer(Source(), [Keeper()], period_s=0.01).start()
print("end")
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "end\n", "")
