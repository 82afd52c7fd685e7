"""What is left of a job whose launcher is interrupted, terminated, or killed: nothing."""

from __future__ import annotations

import array
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path
from typing import Any

import pytest

from byteprophet.launcher.leftovers import marked_processes
from byteprophet.launcher.signals import Signals

from ..namespaces import why_not_permitted

pytestmark = pytest.mark.usefixtures("default_signals")

# Workers that detach a process each, leave a file in /dev/shm, say so, and stay.
_WORKER = (
    'port=$DMLC_PS_ROOT_PORT; echo "$port"; '
    'touch "/dev/shm/BytePS_ShM_${port}_${DMLC_WORKER_ID}_${BYTEPROPHET_SHARED_MEMORY}_1"; '
    "setsid sleep 100 & echo ready; sleep 100"
)
_LAUNCH = """
import os, sys
from pathlib import Path
from byteprophet.launcher import JobSpec, Limits, RoleCommands, run_job
run, namespaces = sys.argv[1:3]
stay = ("sleep", "100")
spec = JobSpec(
    command=("sh", "-c", sys.argv[3]), run_directory=Path(run), scheduler="stock",
    namespaces=namespaces == "yes", roles=RoleCommands(stay, stay), limits=Limits(grace_s=1),
)
run_job(spec, lambda role, line: os.write(1, line.encode() + bytes([10])))
"""


class Launched:
    """A launcher in a process of its own, with its job's two workers ready."""

    def __init__(self, directory: Path, namespaces: bool, worker: str = _WORKER) -> None:
        self.run = directory / "run"
        # Short: for a long path, in which sockets would not fit, the launcher uses /tmp itself.
        self.temporary = Path(tempfile.mkdtemp(prefix="bp-test-"))
        self.process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, str(self.run), "yes" if namespaces else "no", worker],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
            env={**os.environ, "TMPDIR": str(self.temporary)},
            start_new_session=True,
        )
        self.port, ready = "", 0
        assert self.process.stdout is not None
        while ready < 2:
            line = self.process.stdout.readline().strip()
            assert line, self.process.communicate()[1]
            ready += line == "ready"
            self.port = self.port or line  # the first one
        assert marked_processes(str(self.run))
        assert list(self.temporary.iterdir())

    def shared_memory(self) -> list[Path]:
        return list(Path("/dev/shm").glob(f"BytePS_ShM_{self.port}_*"))

    def left(self) -> list[object]:
        """Everything of the job that is still there."""
        processes = marked_processes(str(self.run))
        return [*processes, *self.temporary.iterdir(), *self.shared_memory()]

    def assert_nothing_left(self) -> None:
        assert self.left() == []
        self.temporary.rmdir()


_REASON = why_not_permitted()
_PLACES = [
    False,
    pytest.param(True, marks=pytest.mark.skipif(_REASON is not None, reason=str(_REASON))),
]


@pytest.mark.parametrize("namespaces", _PLACES, ids=["local", "namespaces"])
@pytest.mark.parametrize(
    ("signum", "status"),
    [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
)
def test_a_signal_ends_everything(
    tmp_path: Path, signum: int, status: int, namespaces: bool
) -> None:
    launched = Launched(tmp_path, namespaces)
    if not namespaces:
        assert len(launched.shared_memory()) == 2
    launched.process.send_signal(signum)
    _, errors = launched.process.communicate(timeout=20)
    # A Python that ends with KeyboardInterrupt ends by the signal itself.
    assert launched.process.returncode == status, errors
    launched.assert_nothing_left()
    summary = json.loads((launched.run / "summary.json").read_text())
    assert summary["status"] == "interrupted"
    assert summary["failed"] == f"interrupted by {signal.Signals(signum).name}"


@pytest.mark.parametrize("namespaces", _PLACES, ids=["local", "namespaces"])
def test_nothing_is_left_when_the_launcher_is_killed(tmp_path: Path, namespaces: bool) -> None:
    launched = Launched(tmp_path, namespaces)
    launched.process.kill()
    launched.process.communicate(timeout=20)
    deadline_s = time.monotonic() + 15
    while launched.left() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    launched.assert_nothing_left()


def test_only_an_interrupt_after_another_signal_raises() -> None:
    """Slurm and timeout send SIGTERM twice, and a script must have its grace."""
    with Signals() as signals:
        for signum in (signal.SIGTERM, signal.SIGTERM, signal.SIGHUP):
            signal.raise_signal(signum)
        assert signals.received == signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_signals_for_scripts_reach_the_workers_alone(tmp_path: Path) -> None:
    """Slurm may send them to all processes: those that run no script survive them."""
    worker = (
        "trap 'echo saved' USR1; trap 'echo again' USR2; echo 1; "
        "echo ready; while :; do sleep 0.1; done"
    )
    launched = Launched(tmp_path, False, worker)
    for name in ("scheduler", "server-0"):
        for pid in marked_processes(str(launched.run), name):
            os.kill(pid, signal.SIGUSR1)
    lines: list[str] = []
    assert launched.process.stdout is not None
    for signum, word in ((signal.SIGUSR1, "saved"), (signal.SIGUSR2, "again")):
        launched.process.send_signal(signum)
        while lines.count(word) < 2:
            line = launched.process.stdout.readline()
            assert line, launched.process.communicate()[1]
            lines.append(line.strip())
    launched.process.terminate()
    _, errors = launched.process.communicate(timeout=20)
    assert launched.process.returncode == 143, errors
    summary = json.loads((launched.run / "summary.json").read_text())
    assert summary["failed"] == "interrupted by SIGTERM"


def waiting_bytes(pipe: Any) -> int:
    """What is in a pipe, and nobody has read."""
    count = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]


def test_a_signal_ends_a_job_whose_output_nobody_reads(tmp_path: Path) -> None:
    """The launcher's pipe is full."""
    talk = 'echo "$DMLC_PS_ROOT_PORT"; echo ready; yes'
    launched = Launched(tmp_path, False, talk)
    held = [-1, waiting_bytes(launched.process.stdout)]
    while held[-1] == 0 or held[-1] != held[-2]:
        time.sleep(0.2)
        held.append(waiting_bytes(launched.process.stdout))
    launched.process.send_signal(signal.SIGINT)
    assert launched.process.wait(timeout=20) == -signal.SIGINT
    launched.assert_nothing_left()
    assert launched.process.stdout is not None
    launched.process.stdout.close()
