"""The server refuses modes that give wrong results, however it was started."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

MODES = (
    "BYTEPS_SERVER_ENABLE_SCHEDULE",
    "BYTEPS_SERVER_ENGINE_BLOCKING",
    "BYTEPS_ENABLE_ASYNC",
)
PYTHON = (sys.executable, "-c", "import byteps.server")


def start(command: tuple[str, ...], variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DMLC_", "BYTEPS_"))}
    folders = f"{Path(sys.executable).parent}:{sysconfig.get_path('scripts')}"
    environment = {
        **kept,
        "PATH": f"{folders}:{os.environ['PATH']}",
        "DMLC_ROLE": "server",
        "DMLC_NUM_WORKER": "2",
        "DMLC_NUM_SERVER": "1",
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": "1",
        **variables,
    }
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("mode", MODES)
def test_by_python(mode: str) -> None:
    done = start(PYTHON, {mode: "1"})
    assert done.returncode == 2
    assert done.stderr.startswith(f"byteprophet: error: {mode}=1: ")
    assert done.stderr.endswith("; unset it\n")
    assert done.stderr.count("\n") == 1


def test_by_bpslaunch() -> None:
    done = start(("bpslaunch",), {MODES[0]: "1"})
    assert done.returncode == 2
    assert done.stderr == f"byteprophet: error: {MODES[0]}=1: gives wrong sums; unset it\n"


def test_modes_that_are_off_are_not_refused() -> None:
    """It then fails to find an interface that does not exist: it went on to start."""
    off = {MODES[0]: "0", MODES[1]: "", "DMLC_INTERFACE": "nope0", "DMLC_NODE_HOST": ""}
    done = start(PYTHON, off)
    lines = [line for line in done.stderr.splitlines() if line.startswith("byteprophet: error")]
    assert lines == [
        "byteprophet: error: DMLC_INTERFACE=nope0: there is no such interface with an address"
    ]
