"""Gradients travel over data links under a policy unless the environment asks for ZeroMQ."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest

from byteprophet.launcher import JobSpec, run_job

from .started_by_hand import Job

pytestmark = pytest.mark.job
WORKER = Path(__file__).with_name("van_worker.py")


def run(
    tmp_path: Path, scheduler: str, van: str, *arguments: str, servers: int = 2
) -> tuple[list[str], bool]:
    """What the workers said, and whether the job failed."""
    spec = JobSpec(
        command=(sys.executable, str(WORKER), *arguments),
        run_directory=tmp_path / "run",
        directory=tmp_path,
        scheduler=scheduler,
        servers=servers,
        partition_bytes=1 << 20,
        environment={"BYTEPROPHET_TIMEOUT_S": "60", "BYTEPROPHET_VAN": van},
        timeout_s=120.0,
    )
    said: list[str] = []
    result = run_job(spec, lambda _, line: said.append(line))
    return said, result.failed is not None


def verdicts(said: list[str]) -> list[str]:
    return sorted(line for line in said if "data links" in line)


@pytest.mark.parametrize(
    ("scheduler", "van", "has_links"),
    [
        ("prophet", "", True),
        ("fifo", "sockets", True),
        ("prophet", "zmq", False),
        ("stock", "", False),
        ("stock", "sockets", False),
    ],
)
def test_who_has_data_links(tmp_path: Path, scheduler: str, van: str, has_links: bool) -> None:
    said, failed = run(tmp_path, scheduler, van)
    assert not failed
    assert verdicts(said) == [
        f"rank {rank}: right sums, data links: {has_links}" for rank in range(2)
    ]


def test_roles_may_differ(tmp_path: Path) -> None:
    """A worker without links and one with links push to the same servers."""
    said, failed = run(tmp_path, "prophet", "", "1")
    assert not failed
    assert verdicts(said) == [
        "rank 0: right sums, data links: True",
        "rank 1: right sums, data links: False",
    ]


def test_links_are_made_anew_when_a_suspended_job_goes_on(tmp_path: Path) -> None:
    said, failed = run(tmp_path, "prophet", "sockets", "suspend")
    assert not failed
    assert verdicts(said) == [f"rank {rank}: right sums, data links: True" for rank in range(2)]


def test_a_wrong_value_ends_the_job_with_one_line(tmp_path: Path) -> None:
    said, failed = run(tmp_path, "prophet", "carrier pigeon", servers=1)
    assert failed
    assert any("BYTEPROPHET_VAN='carrier pigeon': must be sockets or zmq" in line for line in said)


def test_a_link_that_was_cut_ends_the_job_though_all_live(tmp_path: Path) -> None:
    """Heartbeats have a connection of their own, and miss nobody."""
    job = Job(tmp_path, Path(__file__).with_name("heartbeat_worker.py"))
    try:
        job.start("cut", BYTEPS_SCHEDULER="fifo", BYTEPROPHET_VAN="")
        job.wait_for("cuts 2 sockets", "worker-0")
        struck_s = time.monotonic()
        statuses = job.statuses()
        assert time.monotonic() - struck_s < 30
        assert set(statuses.values()) == {1}
        (line,) = job.errors("worker-0")
        assert re.fullmatch(
            r"the data link to the server at 127\.0\.0\.1:\d+ has ended \(.+\) and what was on "
            r"its way over it is lost: the job cannot go on",
            line,
        )
        assert all("worker-0 (127.0.0.1)" in text for text in job.errors("scheduler"))
    finally:
        job.end()
