"""Jobs started by hand, without our launcher: who is lost ends the job everywhere and is named."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from byteprophet.launcher.checks import LOOPBACK, root_port

pytestmark = pytest.mark.job
WORKER = Path(__file__).with_name("heartbeat_worker.py")
LIMIT_S = 4
PATIENCE_S = 90.0


class Job:
    """Roles as processes; output of each goes to a file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = root_port(None, LOOPBACK)
        self.roles: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, *worker: str, **environment: str) -> None:
        """A scheduler role and a server; two workers run ``worker`` unless there is none."""
        workers = ("worker-0", "worker-1") if worker else ()
        for name in ("scheduler", "server", *workers):
            self._start_role(name, worker, environment)

    def _start_role(self, name: str, worker: Sequence[str], environment: Mapping[str, str]) -> None:
        kind, _, number = name.partition("-")
        sockets = self.folder / f"sockets-{name}"
        sockets.mkdir()
        added = {
            "DMLC_ROLE": kind,
            "DMLC_WORKER_ID": number,
            "DMLC_PS_ROOT_URI": LOOPBACK,
            "DMLC_PS_ROOT_PORT": str(self.port),
            "DMLC_NODE_HOST": LOOPBACK,
            "DMLC_NUM_WORKER": "2",
            "DMLC_NUM_SERVER": "1",
            "BYTEPS_LOCAL_RANK": "0",
            "BYTEPS_LOCAL_SIZE": "1",
            "BYTEPS_SOCKET_PATH": str(sockets),
            "BYTEPROPHET_DEAD_AFTER_S": str(LIMIT_S),
            "OMP_NUM_THREADS": "1",
            **environment,
        }
        command = (str(WORKER), *worker) if kind == "worker" else ("-c", "import byteps.server")
        with (self.folder / name).open("wb") as output:
            self.roles[name] = subprocess.Popen(
                (sys.executable, *command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **added},
                start_new_session=True,
            )

    def text(self, role: str) -> str:
        return (self.folder / role).read_text(errors="replace")

    def errors(self, role: str) -> list[str]:
        mark = "byteprophet: error: "
        return [line[len(mark) :] for line in self.text(role).splitlines() if line.startswith(mark)]

    def wait_for(self, text: str, *roles: str) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not all(text in self.text(role) for role in roles):
            assert time.monotonic() < deadline_s, {role: self.text(role) for role in self.roles}
            time.sleep(0.1)

    def statuses(self, *but: str) -> dict[str, int]:
        """Of all roles except ``but``, once they have ended."""
        return {n: r.wait(PATIENCE_S) for n, r in self.roles.items() if n not in but}

    def end(self) -> None:
        for role in self.roles.values():
            role.kill()
            role.wait()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    started = Job(tmp_path)
    yield started
    started.end()


@pytest.mark.parametrize(("victim", "scheduler"), [("worker-1", "stock"), ("scheduler", "p3")])
def test_a_stopped_role_ends_all_others(job: Job, victim: str, scheduler: str) -> None:
    job.start("forever", BYTEPS_SCHEDULER=scheduler)
    job.wait_for("training", "worker-0", "worker-1")
    job.roles[victim].send_signal(signal.SIGSTOP)
    struck_s = time.monotonic()
    statuses = job.statuses(victim)
    assert time.monotonic() - struck_s < 30
    assert statuses == dict.fromkeys(job.roles.keys() - {victim}, 1)
    limit_s = LIMIT_S + 3 if victim == "scheduler" else LIMIT_S
    line = f"{victim} (127.0.0.1) has been silent for {limit_s} s: the job cannot go on"
    assert all(job.errors(role) == [line] for role in statuses)
    # Those that ended left none of their shared memory; the stopped one cannot clean up.
    for path in Path("/dev/shm").glob(f"BytePS_*_{job.port}_*"):
        assert victim == "worker-1"
        assert f"_{job.port}_1_" in path.name
        path.unlink()


def test_a_role_that_never_comes_is_missed(job: Job) -> None:
    """Nobody but the scheduler and the server: two workers are missing."""
    job.start(BYTEPROPHET_START_TIMEOUT_S="3")
    assert set(job.statuses().values()) == {1}
    line = (
        "scheduler (127.0.0.1) waited 3 s for all to register: 0 of 2 workers and 1 of 1 servers "
        "did (server (127.0.0.1)): the job cannot go on"
    )
    assert job.errors("scheduler") == job.errors("server") == [line]


def test_who_is_silent_in_python_alone_is_not_lost(job: Job) -> None:
    job.start("pause", str(2 * LIMIT_S))
    assert set(job.statuses().values()) == {0}
    assert all(job.errors(role) == [] for role in job.roles)


@pytest.mark.parametrize("value", ["x", "1", "-5", "inf", "nan"])
def test_a_wrong_limit_is_refused(job: Job, value: str) -> None:
    job.start(BYTEPROPHET_DEAD_AFTER_S=value)
    assert set(job.statuses().values()) == {2}
    (line,) = job.errors("server")
    assert line == (
        f"BYTEPROPHET_DEAD_AFTER_S='{value}': must be a number of seconds from 3 to 1000000, or 0 "
        "for no limit"
    )
