"""Jobs whose roles Open MPI's mpirun starts on this machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import tomli_w

from byteprophet.input_files import read_json
from byteprophet.launcher.checks import LOOPBACK, root_port

from .jobs import (
    NAMED_S,
    NO_FORKS,
    RUN,
    SAVE,
    SAVE_AT_THE_END,
    STAY,
    Started,
    each_killed_role_is_named,
    killed_by_default,
    processes_below,
    runs_as_alone,
    saves_at_signal,
    saves_at_the_end,
    wait_until_gone,
)
from .pages import shown_on

pytestmark = [
    pytest.mark.job,
    pytest.mark.skipif(
        shutil.which("mpirun") is None,
        reason="mpirun is not installed: apt-get install openmpi-bin",
    ),
    pytest.mark.usefixtures("default_signals"),
]
ENVIRONMENT = {
    **os.environ,
    **NO_FORKS,
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}
ON = ("--on", "mpi")
START_ROLE = Path(__file__).parents[2] / "launcher" / "mpi" / "start_role"


def test_a_job_gives_what_one_process_gives(tmp_path: Path) -> None:
    (tmp_path / "hostfile").write_text("localhost slots=4\n")
    directory = runs_as_alone(tmp_path, *shown_on("mpi"), env=ENVIRONMENT)
    roles = read_json(directory / "summary.json")["roles"]
    assert [role["name"] for role in roles] == ["scheduler", "server-0", "worker-0", "worker-1"]
    assert [role["exit_status"] for role in roles] == [0] * 4
    wait_until_gone(lambda: processes_below(str(tmp_path)), NAMED_S)


def started(tmp_path: Path) -> Started:
    command = [*RUN, *ON, *STAY]
    return Started(command, tmp_path, 2, ENVIRONMENT)


@pytest.mark.job(3)
@pytest.mark.parametrize("killed", killed_by_default("scheduler", "worker-1"))
def test_each_killed_role_is_named_and_nothing_is_left(
    tmp_path: Path, killed: Sequence[str]
) -> None:
    each_killed_role_is_named(
        tmp_path, ON, ENVIRONMENT, lambda: processes_below(str(tmp_path)), killed=killed
    )


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_roles_end_with_the_launcher(tmp_path: Path, signum: int, status: int) -> None:
    job = started(tmp_path)
    job.process.send_signal(signum)
    assert job.end(NAMED_S)[0] == status
    wait_until_gone(lambda: processes_below(str(tmp_path)), NAMED_S)


def test_a_script_saves_at_a_signal(tmp_path: Path) -> None:
    saves_at_signal(Started([*RUN, *ON, *SAVE], tmp_path, 2, ENVIRONMENT))


def test_a_script_saves_within_the_grace(tmp_path: Path) -> None:
    """Open MPI would kill it after a second."""
    command = [*RUN, *ON, "--grace", "7", *SAVE_AT_THE_END]
    saves_at_the_end(Started(command, tmp_path, 2, ENVIRONMENT), tmp_path)


def test_a_job_file_runs_without_our_launcher(tmp_path: Path) -> None:
    """As launcher/mpi/start_role does; and with a process too few, all refuse.

    Its ranks train nothing: the jobs above have shown that roles with such numbers find each other.
    """
    job = tmp_path / "job.toml"
    fields = {
        "schema": 1,
        "root": f"{LOOPBACK}:{root_port(None, LOOPBACK)}",
        "command": ["sh", "-c", "echo rank $RANK of $WORLD_SIZE at $MASTER_ADDR"],
        "workers": 2,
        "servers": 0,
        "directory": str(tmp_path),
        "run_directory": str(tmp_path / "run"),
    }
    job.write_text(tomli_w.dumps(fields))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    def mpirun(count: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["mpirun", "--oversubscribe", "-np", str(count), str(START_ROLE), str(job)],
            env={**ENVIRONMENT, "PATH": path}, cwd=tmp_path, capture_output=True, text=True,
            timeout=120, check=False,
        )  # fmt: skip

    few = mpirun(1)
    assert few.returncode != 0
    assert (
        "role by-rank: there are 1 processes, and the job has 2 roles: start as many" in few.stderr
    )
    done = mpirun(2)
    assert done.returncode == 0, done.stderr
    for index in range(2):
        made = tmp_path / "run" / f"worker-{index}"
        said = (made / "logs" / f"worker-{index}.log").read_text()
        assert said == f"rank {index} of 2 at {LOOPBACK}\n"
        assert read_json(made / f"summary-worker-{index}.json")["status"] == "done"


def test_doctor_looks_at_the_hosts_of_mpirun(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "byteprophet", "doctor", *ON, "--json"],
        cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    report = json.loads(done.stdout)
    assert report["able"] == (done.returncode == 0), done.stdout + done.stderr
    assert report["hosts"] == [socket.gethostname()]
    (pair,) = report["pairs"]
    assert pair["errors"] == {}
    assert list(tmp_path.iterdir()) == []
