"""BytePS' own ``DistributedDataParallel`` under BYTEPROPHET_SYNC, in real jobs of two ranks."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from byteprophet import schedulers
from byteprophet.job.strategy import BYTEPS
from byteprophet.launcher import JobResult, JobSpec, run_job

pytestmark = [pytest.mark.job, pytest.mark.timeout(300)]
SCRIPT = Path(__file__).with_name("byteps_script.py")
Lines = list[tuple[str, str]]
Job = Callable[[str], tuple[JobResult, Lines]]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """The result of a job under a sync, "" for none, and who printed what; each job runs once."""

    @functools.cache
    def run(sync: str) -> tuple[JobResult, Lines]:
        lines: Lines = []
        spec = JobSpec(
            command=(sys.executable, str(SCRIPT)),
            run_directory=tmp_path_factory.mktemp("job") / "run",
            servers=int(sync in ("", BYTEPS)),
            ranks=sync == BYTEPS,
            scheduler=schedulers.DEFAULT if sync else schedulers.STOCK,
            environment={"BYTEPROPHET_SYNC": sync, "BYTEPROPHET_TIMEOUT_S": "120"},
            timeout_s=200.0,
        )
        return run_job(spec, lambda role, line: lines.append((role, line))), lines

    return run


@pytest.mark.parametrize("sync", ["allreduce", "dear-planned", BYTEPS])
def test_same_bits(job: Job, sync: str) -> None:
    found = []
    for each in ("", sync):
        result, lines = job(each)
        result.check()
        matches = (re.match(r"digest (\w+) by (\w+),", line) for _, line in lines)
        found.append([match for match in matches if match])
    before, after = found
    assert len(before) == len(after) == 2
    assert [each[1] for each in after] == [each[1] for each in before]
    assert {each[2] for each in before} == {"torch"}
    assert {each[2] for each in after} == {"byteprophet"}


def test_auto_is_refused_in_one_line(job: Job) -> None:
    result, lines = job("auto")
    assert result.failed is not None
    assert "ended with status 2" in result.failed
    says = "byteprophet: error: BYTEPROPHET_SYNC=auto: BytePS' DistributedDataParallel has "
    refused = {role for role, line in lines if says in line}
    assert refused  # the other rank may still be connecting to it, and then tells of that
    assert not [line for role, line in lines if role in refused and "Traceback" in line]
