"""Removes everything that a job may leave behind, even if the launcher was killed.

As a program, this file is the job's caretaker: it waits for the end of its standard input, whose
other end only the launcher has, and then cleans up. So it works whether the launcher closes the
pipe or is killed with SIGKILL. It runs in its own session, so Ctrl-C does not reach it.

Processes are found by BYTEPROPHET_RUN in their environment. Every process of a job inherits it, and
no other process has it, because its value is a run directory that was made for this job.

This file imports only the standard library, because the caretaker starts it without the package.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

_KILL_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Leftovers:
    """The resources of one job. ``shared_memory`` are glob patterns in /dev/shm.

    ``roles``: only these roles' processes belong to them; none: those of all roles.
    """

    run_directory: str
    temporary_directory: str
    shared_memory: tuple[str, ...]
    roles: tuple[str, ...] = ()

    def to_json(self) -> str:
        """The object as JSON, for the caretaker's command line."""
        return json.dumps(asdict(self))


def marked_processes(run_directory: str, role: str | None = None) -> list[int]:
    """The ids of processes with the job's BYTEPROPHET_RUN, except this one.

    With ``role``, only those of that role.
    """
    marks = [b"\0BYTEPROPHET_RUN=" + os.fsencode(run_directory) + b"\0"]
    if role is not None:
        marks.append(b"\0BYTEPROPHET_ROLE=" + os.fsencode(role) + b"\0")
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:  # it has ended or belongs to another user
            continue
        there = all(mark in b"\0" + environment + b"\0" for mark in marks)
        if there and int(entry.name) != os.getpid():
            found.append(int(entry.name))
    return found


def _processes(leftovers: Leftovers) -> list[int]:
    if not leftovers.roles:
        return marked_processes(leftovers.run_directory)
    return [
        pid for role in leftovers.roles for pid in marked_processes(leftovers.run_directory, role)
    ]


def sweep(leftovers: Leftovers) -> None:
    """Kills the job's processes, then removes its shared memory and its temporary directory."""
    deadline = time.monotonic() + _KILL_TIMEOUT_S
    # Repeats until none is found: a process may start another one while the list is made.
    while (found := _processes(leftovers)) and time.monotonic() < deadline:
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    for pattern in leftovers.shared_memory:
        for path in Path("/dev/shm").glob(pattern):  # noqa: S108 - where BytePS puts it
            with contextlib.suppress(OSError):
                path.unlink()
    shutil.rmtree(leftovers.temporary_directory, ignore_errors=True)


def _main() -> None:
    fields = json.loads(sys.argv[1])
    for name in ("shared_memory", "roles"):
        fields[name] = tuple(fields[name])
    sys.stdin.buffer.read()
    sweep(Leftovers(**fields))


if __name__ == "__main__":
    _main()
