"""Roles that cannot start, or wait for others that never come: each says so in one line."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import pytest

from byteprophet.launcher.checks import LOOPBACK, root_port

from ..python_process import start_python
from ..small_disk import run_on_small_disk

SERVE = (sys.executable, "-c", "import byteps.server")
PATIENCE_S = 90.0
_SEND = """
import torch
import byteps.torch as bps
bps.init()
print("joins", flush=True)
tensor = torch.ones(2_000_000)  # 8 MB
bps.synchronize(bps.byteps_push_pull(tensor, average=False, name="tensor"))
bps.shutdown()
"""
_RUN = "import sys; from byteprophet.cli.main import run_cli; sys.exit(run_cli(sys.argv[1:]))"


def start(
    command: Sequence[str], folder: Path | None = None, **variables: str
) -> subprocess.Popen[str]:
    """With ``variables`` and nothing else of BytePS; with ``folder``, for its sockets."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("DMLC_", "BYTEPS_", "BYTEPROPHET_")) and name != "PORT"
    }
    if folder is not None:
        folder.mkdir()
        kept["BYTEPS_SOCKET_PATH"] = str(folder)
    pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    if command[0] == sys.executable:
        forks = command != SERVE  # the others import torch
        return start_python(*command[1:], fork=forks, env={**kept, **variables}, **pipes)
    path = f"{Path(sys.executable).parent}:{sysconfig.get_path('scripts')}:{kept['PATH']}"
    return subprocess.Popen(command, env={**kept, "PATH": path, **variables}, text=True, **pipes)


def job(port: int, **variables: str) -> dict[str, str]:
    return {
        "DMLC_NUM_WORKER": "2",
        "DMLC_NUM_SERVER": "1",
        "DMLC_PS_ROOT_URI": LOOPBACK,
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_NODE_HOST": LOOPBACK,
        "BYTEPS_LOCAL_RANK": "0",
        "BYTEPS_LOCAL_SIZE": "1",
        **variables,
    }


def ours(process: subprocess.Popen[str]) -> list[str]:
    """What the process said of ours until its end; no stack trace is beside it."""
    try:
        _, errors = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert "Traceback" not in errors
    assert "Stack trace" not in errors
    return [line for line in errors.splitlines() if line.startswith("byteprophet: ")]


@pytest.mark.parametrize("framework", ["byteps.torch", "byteprophet.torch"])
def test_a_script_without_a_job_is_told_what_it_lacks(framework: str) -> None:
    script = f"import {framework} as bps; bps.init()"
    process = start((sys.executable, "-c", script), DMLC_NUM_WORKER="2", DMLC_ROLE="worker")
    (line,) = ours(process)
    assert process.returncode == 2
    assert line.startswith("byteprophet: error: DMLC_NUM_SERVER, DMLC_PS_ROOT_URI, ")
    assert "DMLC_WORKER_ID, BYTEPS_LOCAL_RANK, BYTEPS_LOCAL_SIZE: not set" in line


@pytest.mark.parametrize(
    ("command", "role"), [(SERVE, "server"), (SERVE, "scheduler"), (("bpslaunch",), "server")]
)
def test_a_server_without_a_job_is_told_what_it_lacks(command: Sequence[str], role: str) -> None:
    process = start(command, DMLC_ROLE=role, DMLC_NUM_WORKER="2", DMLC_NUM_SERVER="1")
    (line,) = ours(process)
    assert process.returncode == 2
    assert line.startswith("byteprophet: error: DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT: not set")


@pytest.mark.parametrize(("command", "status"), [("exit 7", 7), ("kill -9 $$", 137)])
def test_bpslaunch_passes_on_how_a_worker_ended(command: str, status: int) -> None:
    process = start(("bpslaunch", command), **job(1), DMLC_ROLE="worker", DMLC_WORKER_ID="0")
    assert ours(process) == []
    assert process.returncode == status


def test_a_port_that_is_in_use_is_named() -> None:
    with socket.socket() as other:
        other.bind((LOOPBACK, 0))
        other.listen()
        port = other.getsockname()[1]
        process = start(SERVE, **job(port), DMLC_ROLE="scheduler")
        (line,) = ours(process)
    assert process.returncode == 2
    assert line == (
        f"byteprophet: error: cannot listen on tcp://{LOOPBACK}:{port}: Address already in use; "
        "see DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT"
    )


def test_an_interface_that_is_not_there_is_named() -> None:
    process = start(SERVE, **job(1, DMLC_NODE_HOST="", DMLC_INTERFACE="no0"), DMLC_ROLE="server")
    assert ours(process) == [
        "byteprophet: error: DMLC_INTERFACE=no0: there is no such interface with an address"
    ]
    assert process.returncode == 2


@pytest.mark.job
def test_who_waits_says_for_whom(tmp_path: Path) -> None:
    """A server whose scheduler role never comes, and a worker whose other worker never comes."""
    nobody, port = root_port(None, LOOPBACK), root_port(None, LOOPBACK)
    lonely = start(SERVE, **job(nobody, BYTEPROPHET_START_TIMEOUT_S="11"), DMLC_ROLE="server")
    roles = [
        start(SERVE, **job(port, BYTEPROPHET_START_TIMEOUT_S="120"), DMLC_ROLE=role)
        for role in ("scheduler", "server")
    ]
    worker = start(
        (sys.executable, "-c", _SEND),
        tmp_path / "sockets",
        BYTEPS_SCHEDULER="fifo",  # as shipped, it polls
        **job(port, BYTEPROPHET_START_TIMEOUT_S="120", DMLC_WORKER_ID="1", DMLC_ROLE="worker"),
    )
    try:
        warning, error = ours(lonely)
        where = f"scheduler ({LOOPBACK}) to answer at {LOOPBACK}:{nobody}"
        assert warning == (
            f"byteprophet: warning: server ({LOOPBACK}) waits for {where} "
            "(DMLC_PS_ROOT_URI:DMLC_PS_ROOT_PORT); gives up after 11 s"
        )
        assert error == f"byteprophet: error: waited 11 s for {where}: the job cannot go on"
        assert lonely.returncode == 1
        assert worker.stderr is not None
        said = next(line for line in worker.stderr if line.startswith("byteprophet: warning: "))
        assert said == (
            f"byteprophet: warning: worker-1 ({LOOPBACK}) waits for all to register: "
            f"1 of 2 workers and 1 of 1 servers did (server ({LOOPBACK}), worker-1 ({LOOPBACK})); "
            "gives up after 120 s\n"
        )
    finally:
        for process in (lonely, worker, *roles):
            process.kill()
            process.communicate()
        for path in Path("/dev/shm").glob(f"BytePS_*_{port}_*"):
            path.unlink()


@pytest.mark.job
@pytest.mark.parametrize(
    ("size_kib", "local_ranks", "says"),
    [
        (4096, "1", "error: /dev/shm is too small: 8.0 MB are needed at once, 4.2 MB of 4.2 MB"),
        (256, "2", "cannot share memory: /dev/shm is too small: 1.1 MB are needed at once, "),
    ],
)
def test_too_little_shared_memory_is_named(
    size_kib: int, local_ranks: str, says: str, tmp_path: Path
) -> None:
    options = ("--runs", str(tmp_path / "runs"), "--scheduler", "stock")
    done = run_on_small_disk(
        Path("/dev/shm"),
        size_kib,
        *("-c", _RUN, "run", *options, "--local-ranks", local_ranks, "--"),
        *(sys.executable, "-c", _SEND),
    )
    assert done.returncode == 1
    line = done.stderr.splitlines()[-1]
    assert line.startswith("byteprophet: error: worker-")
    assert says in line
    assert "docker run --shm-size=4g" in line
    assert "Bad address" not in done.stdout
