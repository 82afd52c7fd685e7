"""A worker that leaves while others still count on it: these are told soon, and are not ended.

Whatever needs the one that has left fails, with a line that names it; what does not need it goes
on, and all roles end well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from .started_by_hand import Job

pytestmark = pytest.mark.job
WORKER = Path(__file__).with_name("uneven_worker.py")
SOON_S = 15
TOLD = (
    "worker-1 (127.0.0.1) has {} push_pulls and takes no part in this one: all workers must make "
    "as many, so each needs as many batches"
)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    started = Job(tmp_path, WORKER)
    yield started
    started.end()


def told(job: Job) -> dict[str, str]:
    """What worker 0 was told, by what it did, once all have ended well."""
    assert job.statuses() == dict.fromkeys(("scheduler", "server", "worker-0", "worker-1"), 0)
    found = {}
    for line in job.text("worker-0").splitlines():
        match = re.fullmatch(r"(\w+) after (\d+) s: (.*)", line)
        if match is not None:
            assert int(match[2]) < SOON_S
            found[match[1]] = match[3]
    assert all("good end" in job.text(worker) for worker in ("worker-0", "worker-1"))
    return found


def test_a_worker_with_fewer_batches(job: Job) -> None:
    job.start("front", BYTEPS_SCHEDULER="prophet")
    (line,) = told(job).values()
    assert re.search(re.escape(TOLD).replace(r"\{\}", r"finished after \d+"), line)
    assert line.startswith("byteprophet: the gradient of parameter ")


@pytest.mark.parametrize("scheduler", ["stock", "p3"])
def test_without_an_optimizer(job: Job, scheduler: str) -> None:
    """First it suspends, and the job goes on when all have; then it ends."""
    job.start("direct", BYTEPS_SCHEDULER=scheduler)
    assert told(job) == {
        "suspended": TOLD.format("called suspend() after 1"),
        **dict.fromkeys(("new", "known", "again"), TOLD.format("finished after 3")),
    }


@pytest.mark.parametrize("how", ["shutdown", "end"])
def test_a_worker_that_leaves_what_it_has_begun(job: Job, how: str) -> None:
    """It does its part first."""
    job.start("unwaited", how, BYTEPS_SCHEDULER="prophet")
    assert told(job) == {}


def test_workers_that_push_other_types(job: Job) -> None:
    job.start("types", BYTEPS_SCHEDULER="prophet")
    assert job.statuses()["server"] == 1
    (line,) = job.errors("server")
    pushed = {"0": "80 bytes of int64", "1": "80 bytes of float64"}
    match = re.fullmatch(
        "workers partition the same tensor differently, or its size or type differs: "
        r"worker-(\d) pushes (.*) for partition 0 of the tensor that was declared as number 0, "
        r"counted from 0, but worker-(\d) pushed (.*)",
        line,
    )
    assert match is not None, line
    assert {match[1]: match[2], match[3]: match[4]} == pushed
