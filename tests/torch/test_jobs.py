"""Real jobs of two workers, beside training (which is ``test_cases.py``)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from byteprophet.launcher import JobResult, JobSpec, run_job

pytestmark = pytest.mark.job
WORKER = Path(__file__).with_name("job_worker.py")


def run(folder: Path, case: str, scheduler: str) -> JobResult:
    spec = JobSpec(
        command=(sys.executable, str(WORKER), case),
        run_directory=folder / "run",
        directory=folder,
        scheduler=scheduler,
        timeout_s=200.0,
    )
    return run_job(spec, None)


def test_a_fault_in_one_worker_ends_the_job(tmp_path: Path) -> None:
    """It used to hang: BytePS waits at exit for the others, who wait for this one's gradients."""
    result = run(tmp_path, "failing", "p3")
    assert result.exit_status == 1
    assert result.failed is not None
    assert result.failed.startswith("worker-1 ended with status 1")
    assert "a fault of this script" in result.failed


@pytest.mark.parametrize("scheduler", ["stock", "prophet"])
def test_operations(tmp_path: Path, scheduler: str) -> None:
    """The worker checks the values."""
    assert run(tmp_path, "operations", scheduler).failed is None
