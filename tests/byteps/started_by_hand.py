"""The roles of a job with two workers and a server, started by hand: without our launcher."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from byteprophet.launcher.checks import LOOPBACK, root_port
from byteprophet.launcher.forked_process import Process

from ..python_process import start_python

LIMIT_S = 4
PATIENCE_S = 90.0


class Job:
    """Roles as processes; output of each goes to a file. ``worker``: the workers' script."""

    def __init__(self, folder: Path, worker: Path) -> None:
        self.folder = folder
        self._worker = worker
        # A socket's path is short, and a test's folder may not be.
        self._sockets = Path(tempfile.mkdtemp(prefix="sockets-"))
        self.port = root_port(None, LOOPBACK)
        self.roles: dict[str, Process[Any]] = {}

    def start(self, *worker: str, **environment: str) -> None:
        """A scheduler role and a server; two workers run ``worker`` unless there is none."""
        workers = ("worker-0", "worker-1") if worker else ()
        for name in ("scheduler", "server", *workers):
            self._start_role(name, worker, environment)

    def _start_role(self, name: str, worker: Sequence[str], environment: Mapping[str, str]) -> None:
        kind, _, number = name.partition("-")
        sockets = self._sockets / name
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
            **environment,
        }
        command = (
            (str(self._worker), *worker) if kind == "worker" else ("-c", "import byteps.server")
        )
        with (self.folder / name).open("wb") as output:
            self.roles[name] = start_python(
                *command,
                fork=kind == "worker",
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
        shutil.rmtree(self._sockets, ignore_errors=True)
