"""Regression: every message that a server or worker received cost it 1 to 8 kB for good."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from byteprophet.launcher import JobSpec, read_worker_results, run_job

WORKER = Path(__file__).with_name("memory_worker.py")


@pytest.mark.job
def test_messages_cost_no_memory(tmp_path: Path) -> None:
    spec = JobSpec(
        command=(sys.executable, str(WORKER)),
        run_directory=tmp_path / "run",
        directory=tmp_path,
        scheduler="prophet",
        timeout_s=120.0,
    )
    assert run_job(spec, None).failed is None
    (grown,) = read_worker_results(spec.run_directory)
    # Per push_pull, the server receives four messages and the worker two. The leak took 4.1 kB of
    # the server; 1 kB leaves room for a heap that settles.
    assert grown["server"] < 1000 * grown["push_pulls"]
    assert grown["worker"] < 1000 * grown["push_pulls"]
