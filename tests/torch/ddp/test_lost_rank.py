"""A rank of an unmodified script is lost: within half a minute, somebody names it.

The launcher sees ended and stopped processes. Ranks that were started otherwise see that a
connection has ended. Of a stopped one they only see that nothing comes, and say so, because it may
go on.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from byteprophet.launcher import JobSpec, run_job
from byteprophet.launcher.checks import root_port

from ...python_process import start_python

pytestmark = [pytest.mark.job, pytest.mark.timeout(300)]
SCRIPT = Path(__file__).with_name("lost_script.py")
NAMED_WITHIN_S = 30.0


@pytest.mark.parametrize(
    ("way", "says"),
    [
        ("killed", "worker-1 was killed by signal 9 (SIGKILL) after "),
        ("stopped", "worker-1 was stopped (SIGSTOP) and did not go on: process "),
        ("raises", "worker-1 ended with status 1"),
    ],
)
def test_the_launcher_names_it(tmp_path: Path, way: str, says: str) -> None:
    lost_s: list[float] = []

    def note(_role: str, line: str) -> None:
        if line.startswith("accident"):
            lost_s.append(time.monotonic())

    spec = JobSpec(
        command=(sys.executable, str(SCRIPT), way, "1"),
        run_directory=tmp_path / "run",
        servers=0,
        environment={"BYTEPROPHET_SYNC": "dear-planned"},
        timeout_s=200.0,
    )
    result = run_job(spec, note)
    assert lost_s
    assert time.monotonic() - lost_s[0] < NAMED_WITHIN_S
    assert result.exit_status == 1
    assert result.failed is not None
    assert result.failed.startswith(says)
    if way == "raises":
        assert "ValueError: a bad sample" in (tmp_path / "run/logs/worker-1.log").read_text()


LOSSES = [
    ("killed", 1, "rank 1 is gone: "),
    ("raises", 1, "rank 1 is gone: "),
    ("stopped", 1, "byteprophet: warning: rank 0 has waited 20 s "),
    ("stopped", 0, "byteprophet: warning: rank 1 has waited 20 s "),
]


@pytest.fixture(scope="module")
def losses(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[tuple[str, int], Future[None]]]:
    """All jobs at once, as they mostly wait; each fails if nobody names the lost rank."""
    with ThreadPoolExecutor(len(LOSSES)) as threads:
        yield {
            (way, lost): threads.submit(lose, tmp_path_factory.mktemp("lost"), way, lost, says)
            for way, lost, says in LOSSES
        }


@pytest.mark.parametrize(("way", "lost", "says"), LOSSES)
def test_the_other_rank_names_it(
    losses: dict[tuple[str, int], Future[None]], way: str, lost: int, says: str
) -> None:
    losses[way, lost].result()


def lose(folder: Path, way: str, lost: int, says: str) -> None:
    """Run a job that was started by hand until the other rank ``says`` that one is lost."""
    port = root_port(None, "127.0.0.1")
    log, log_of_lost = folder / "log", folder / "log of the lost rank"
    processes = []
    with log.open("w") as output, log_of_lost.open("w") as errors_of_lost:
        for rank in range(2):
            variables = {
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "BYTEPROPHET_SYNC": "dear-planned",
            }
            processes.append(
                start_python(
                    SCRIPT,
                    way,
                    lost,
                    env={**os.environ, **variables},
                    stdout=output,
                    stderr=errors_of_lost if rank == lost else output,
                )
            )
    try:
        assert is_said(log, "accident", 120.0), log.read_text() + log_of_lost.read_text()
        assert is_said(log, says, NAMED_WITHIN_S), log.read_text()
        assert f"rank {lost} " in log.read_text()
        if way != "stopped":
            assert processes[1 - lost].wait(NAMED_WITHIN_S) == 1
    finally:
        for process in processes:
            process.kill()
            process.wait()


def is_said(log: Path, text: str, within_s: float) -> bool:
    """Whether ``text`` comes to be in the log within ``within_s`` seconds."""
    until_s = time.monotonic() + within_s
    while time.monotonic() < until_s:
        if text in log.read_text():
            return True
        time.sleep(0.1)
    return False
