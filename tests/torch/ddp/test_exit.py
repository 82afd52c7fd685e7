"""A rank that leaves by ``os._exit(0)`` has sent what the others need, as without byteprophet."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from byteprophet.launcher import JobSpec, run_job

pytestmark = [pytest.mark.job, pytest.mark.timeout(120)]


def test_others_get_the_last_gradients(tmp_path: Path) -> None:
    lines: list[str] = []
    spec = JobSpec(
        command=(sys.executable, str(Path(__file__).with_name("exit_script.py"))),
        run_directory=tmp_path / "run",
        servers=0,
        environment={"BYTEPROPHET_SYNC": "dear-planned"},
        timeout_s=100.0,
    )
    run_job(spec, lambda _role, line: lines.append(line)).check()
    assert "finite: True" in lines
