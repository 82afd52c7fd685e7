"""Jobs started by hand, without our launcher: who is lost ends the job everywhere and is named."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .started_by_hand import LIMIT_S, Job

pytestmark = pytest.mark.job
WORKER = Path(__file__).with_name("heartbeat_worker.py")


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    started = Job(tmp_path, WORKER)
    yield started
    started.end()


@pytest.mark.parametrize(("victim", "scheduler"), [("worker-1", "stock"), ("scheduler", "p3")])
def test_a_stopped_role_ends_all_others(job: Job, victim: str, scheduler: str) -> None:
    job.start("forever", BYTEPS_SCHEDULER=scheduler)
    job.wait_for("training", "worker-0", "worker-1")
    job.roles[victim].send_signal(signal.SIGSTOP)
    struck_s = time.monotonic()
    statuses = job.statuses(victim)
    assert time.monotonic() - struck_s < 30
    assert statuses == dict.fromkeys(job.roles.keys() - {victim}, 1)
    limit_s = LIMIT_S + 3 if victim == "scheduler" else LIMIT_S
    line = f"{victim} (127.0.0.1) has been silent for {limit_s} s: the job cannot go on"
    assert all(job.errors(role) == [line] for role in statuses)
    # Those that ended left none of their shared memory; the stopped one cannot clean up.
    for path in Path("/dev/shm").glob(f"BytePS_*_{job.port}_*"):
        assert victim == "worker-1"
        assert f"_{job.port}_1_" in path.name
        path.unlink()


def test_who_is_stopped_right_after_it_registered_is_missed(job: Job) -> None:
    """The scheduler may have heard nothing of it yet."""
    job.start("stop", BYTEPS_SCHEDULER="fifo")
    statuses = job.statuses("worker-1")
    assert statuses == dict.fromkeys(job.roles.keys() - {"worker-1"}, 1)
    line = f"worker-1 (127.0.0.1) has been silent for {LIMIT_S} s: the job cannot go on"
    assert job.errors("scheduler") == [line]
    for path in Path("/dev/shm").glob(f"BytePS_*_{job.port}_1_*"):
        path.unlink()


def test_a_role_that_never_comes_is_missed(job: Job) -> None:
    """Nobody but the scheduler and the server: two workers are missing."""
    job.start(BYTEPROPHET_START_TIMEOUT_S="3")
    assert set(job.statuses().values()) == {1}
    line = (
        "scheduler (127.0.0.1) waited 3 s for all to register: 0 of 2 workers and 1 of 1 servers "
        "did (server (127.0.0.1)): the job cannot go on"
    )
    assert job.errors("scheduler") == job.errors("server") == [line]


def test_who_is_silent_in_python_alone_is_not_lost(job: Job) -> None:
    job.start("pause", str(2 * LIMIT_S), BYTEPS_SCHEDULER="fifo")  # stock polls meanwhile
    assert set(job.statuses().values()) == {0}
    assert all(job.errors(role) == [] for role in job.roles)


@pytest.mark.parametrize("value", ["x", "1", "-5", "inf", "nan"])
def test_a_wrong_limit_is_refused(job: Job, value: str) -> None:
    job.start(BYTEPROPHET_DEAD_AFTER_S=value)
    assert set(job.statuses().values()) == {2}
    (line,) = job.errors("server")
    assert line == (
        f"BYTEPROPHET_DEAD_AFTER_S='{value}': must be a number of seconds from 3 to 1000000, or 0 "
        "for no limit"
    )
