"""BytePS as its own documentation starts it: bpslaunch, and a script that imports byteps.torch."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from byteprophet.launcher.checks import root_port

SCRIPT = """
import torch
import byteps.torch as bps

bps.init()
tensor = torch.arange(5.0) + bps.rank()
handle = bps.byteps_push_pull(tensor, average=False, name="tensor")
print("sum", bps.synchronize(handle).tolist(), "of", bps.size())
"""


@pytest.mark.job
def test_a_job_started_by_bpslaunch(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    scripts = sysconfig.get_path("scripts")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("DMLC_", "BYTEPS_")) and name != "PORT"
    }
    environment = {
        **kept,
        "PATH": f"{Path(sys.executable).parent}:{scripts}:{os.environ['PATH']}",
        "DMLC_NUM_WORKER": "2",
        "DMLC_NUM_SERVER": "1",
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(root_port(None, "127.0.0.1")),
        "DMLC_NODE_HOST": "127.0.0.1",
        "OMP_NUM_THREADS": "1",
    }
    roles: list[subprocess.Popen[str]] = []
    workers: list[subprocess.Popen[str]] = []
    try:
        for role, number in (("scheduler", 0), ("server", 0), ("worker", 0), ("worker", 1)):
            sockets = tmp_path / f"{role}-{number}"
            sockets.mkdir()
            command = (
                ["bpslaunch", sys.executable, str(script)] if role == "worker" else ["bpslaunch"]
            )
            process = subprocess.Popen(
                command,
                env={
                    **environment,
                    "DMLC_ROLE": role,
                    "DMLC_WORKER_ID": str(number),
                    "BYTEPS_SOCKET_PATH": str(sockets),
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            roles.append(process)
            if role == "worker":
                workers.append(process)
        for process in workers:
            output, _ = process.communicate(timeout=120)
            assert process.returncode == 0, output
            assert "sum [1.0, 3.0, 5.0, 7.0, 9.0] of 2" in output
    finally:
        for process in roles:
            if process.poll() is None:
                os.killpg(process.pid, 9)
            process.wait(10)
