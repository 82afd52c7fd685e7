"""Servers outlive a worker that is killed while they answer it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from byteprophet.launcher import JobSpec, run_job
from byteprophet.launcher.leftovers import marked_processes

WORKER = Path(__file__).with_name("killed_worker.py")


@pytest.mark.job
def test_servers_wait_for_their_end(tmp_path: Path) -> None:
    """The launcher ends them: none aborts because a connection is closed."""
    spec = JobSpec(
        command=(sys.executable, str(WORKER)),
        run_directory=tmp_path,
        workers=3,
        servers=4,
        timeout_s=100.0,
    )

    def kill(_role: str, line: str) -> None:
        if line == "begun":
            (pid,) = marked_processes(str(tmp_path.absolute()), "worker-1")
            os.kill(pid, signal.SIGKILL)

    result = run_job(spec, kill)
    assert result.failed is not None
    assert result.failed.startswith("worker-1 was killed by signal 9 (SIGKILL)")
    statuses = {role.exit_status for role in result.roles if role.name.startswith("server")}
    assert statuses == {-signal.SIGTERM}
