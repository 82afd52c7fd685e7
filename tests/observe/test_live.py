"""The status file: written while somebody watches, and once more at the end."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from byteprophet.errors import UserError
from byteprophet.observe.live import ASKED, LiveConsumer, make_consumer
from byteprophet.observe.observer import Job
from byteprophet.observe.pace import Pace
from byteprophet.timeline.tables import TRANSFER

SECOND_NS = 1_000_000_000
NONE = np.zeros(0, TRANSFER)


class Clock:
    def __init__(self) -> None:
        self.now_ns = SECOND_NS

    def __call__(self) -> int:
        return self.now_ns


class Watched:
    """A consumer on a clock of its own, and its viewer."""

    def __init__(self, run: Path) -> None:
        self.clock = Clock()
        self.pace = Pace(self.clock)
        job = Job(0, 2, {1: "weight"}, run)
        self.consumer = LiveConsumer(
            run, "worker-0", job, has_transfers=True, pace=self.pace, clock=self.clock
        )
        self.directory = run / "live"
        self.asked = 0

    def ask(self) -> None:
        self.asked += 1
        self.directory.mkdir(exist_ok=True)
        (self.directory / ASKED).touch()
        os.utime(self.directory / ASKED, ns=(self.asked, self.asked))

    def after(self, seconds: float, transfers: np.ndarray = NONE) -> None:  # type: ignore[type-arg]
        self.clock.now_ns += int(seconds * SECOND_NS)
        self.consumer.take(transfers)

    def status(self) -> Any:
        return json.loads((self.directory / "worker-0.json").read_text())


def transfer(size: int) -> np.ndarray:  # type: ignore[type-arg]
    table = np.zeros(1, TRANSFER)
    table[0] = (1 << 16, size, 10, 20, 40, 70, 3, 1, -1, 1)
    return table


def test_nothing_is_recorded_or_written_unless_somebody_watches(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    for _ in range(20):
        watched.after(0.25)
        assert watched.consumer.every == 0
    assert list(tmp_path.iterdir()) == []


def test_figures_of_the_time_in_which_somebody_watches(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.pace.waited("weight", watched.clock.now_ns - 5)  # before: not counted
    watched.pace.begin(1)
    watched.ask()
    watched.after(0.25)
    assert watched.consumer.every == 1
    watched.pace.begin(2)
    watched.pace.tells_waits = True
    watched.pace.waited("weight", watched.clock.now_ns - 700)
    watched.after(0.5, transfer(1000))
    status = watched.status()
    assert (status["watched"], status["watching"], status["ended"]) == (1, True, False)
    assert status["iterations"] == 2
    assert [number for number, _ in status["starts"]] == [1, 2]
    assert status["wait_ns"] == 700
    assert status["waits"] == [{"name": "weight", "count": 1, "wait_ns": 700}]
    assert status["links"] == [
        {
            "server": 3, "push_bytes": 1000, "pull_bytes": 1000, "push_busy_ns": 20,
            "pull_busy_ns": 30, "in_flight_bytes": 1000,
        }
    ]  # fmt: skip
    assert status["tensors"][0]["name"] == "weight"


def test_it_stops_when_nobody_has_asked_for_six_seconds(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.ask()
    watched.after(0.25)
    for _ in range(20):
        watched.after(0.25)
        assert watched.consumer.every == 1
    for _ in range(10):
        watched.after(0.25)
    assert watched.consumer.every == 0
    written = watched.status()["monotonic_ns"]
    watched.after(2.0)
    assert watched.status()["monotonic_ns"] == written
    watched.ask()
    watched.after(1.0)
    assert watched.status()["watched"] == 2


def test_the_file_is_complete_whenever_it_is_read(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.ask()
    watched.after(1.0)
    ended = threading.Event()
    read: list[int] = []

    def look() -> None:
        while not ended.is_set():
            read.append(watched.status()["monotonic_ns"])

    viewer = threading.Thread(target=look)
    viewer.start()
    for _ in range(300):
        watched.ask()
        watched.after(1.0)
    ended.set()
    viewer.join(10.0)
    assert not viewer.is_alive()
    assert read == sorted(read)
    assert read[-1] <= watched.status()["monotonic_ns"]


def test_the_last_file_is_written_unasked(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    for number in range(1, 4):
        watched.pace.begin(number)
        watched.after(0.25)
    watched.consumer.close()
    status = watched.status()
    assert (status["ended"], status["watched"], status["iterations"]) == (True, 0, 3)
    assert status["wait_ns"] is None  # nobody tells waits
    assert status["starts"][-1] == [3, SECOND_NS + SECOND_NS // 2]


def test_a_process_that_never_trained_leaves_no_file(tmp_path: Path) -> None:
    Watched(tmp_path).consumer.close()
    assert list(tmp_path.iterdir()) == []


def test_the_job_goes_on_where_the_file_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    watched = Watched(tmp_path)
    watched.ask()
    (watched.directory / "worker-0.json").mkdir()
    for _ in range(8):
        watched.after(0.5)
    watched.consumer.close()
    assert capsys.readouterr().err.count("the job cannot be watched") == 1


def test_many_starts_and_waits_take_bounded_memory() -> None:
    clock = Clock()
    pace = Pace(clock)
    for number in range(1, 100_001):
        clock.now_ns += 1
        pace.begin(number)
        pace.waited("a", clock.now_ns)
    assert pace.count == 100_000
    assert pace.starts(3) == [(n, SECOND_NS + n) for n in (99_998, 99_999, 100_000)]
    assert len(pace.starts()) < 1000
    assert len(pace.take_waits()) < 10_000
    assert pace.take_waits() == []


def test_of_optimizers_that_take_turns_one_counts() -> None:
    """Until it ends, or another one makes two steps for one of its own."""
    pace = Pace(Clock())
    for number in (1, 2, 3):
        pace.begin(number, by=1)
        pace.begin(number, by=2)
    assert [number for number, _ in pace.starts()] == [1, 2, 3]
    for number in (4, 5, 6):
        pace.begin(number, by=2)
    assert [number for number, _ in pace.starts()] == [1, 2, 3, 4, 5, 6]
    assert pace.count == 6
    for number in (7, 8):  # its own count is behind
        pace.begin(number - 4, by=1)
    assert [number for number, _ in pace.starts()] == [1, 2, 3, 4, 5, 6, 7]


def test_when_there_is_no_consumer(tmp_path: Path) -> None:
    job = Job(0, 2, {}, tmp_path)
    assert make_consumer({"BYTEPROPHET_WATCH": "0"}, job, has_transfers=True) is None
    assert make_consumer({}, Job(0, 2, {}, None), has_transfers=True) is None
    assert make_consumer({}, job, has_transfers=True) is not None
    with pytest.raises(UserError, match="BYTEPROPHET_WATCH=yes"):
        make_consumer({"BYTEPROPHET_WATCH": "yes"}, job, has_transfers=True)
