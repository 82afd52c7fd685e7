"""Every process that a job started, however deep and however detached.

While a job runs this process is a "child subreaper": what the roles leave behind becomes its child
instead of init's, so that it stays findable (and can be waited for). Roles get sessions of their
own, and a process can leave a session only for a new one; so whatever descends from this process,
was not there when the job began and is not in this process' session, is the job's. An application
that runs a job and meanwhile starts other processes in sessions of their own would lose them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import final

_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37
_POLL_S = 0.02


@dataclass(frozen=True)
class Process:
    """From /proc/PID/stat; ``start``, in clock ticks, tells a reused number from its first use."""

    pid: int
    parent: int
    session: int
    state: str
    start: int


def _children_of(root: int) -> list[Process]:
    """All processes below ``root``, at any depth."""
    by_parent: dict[int, list[Process]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            text = (entry / "stat").read_text(errors="replace")
        except OSError:  # it has ended
            continue
        # The name before ")" may contain anything, spaces and brackets too.
        rest = text.rpartition(")")[2].split()
        process = Process(int(entry.name), int(rest[1]), int(rest[3]), rest[0], int(rest[19]))
        by_parent.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    frontier = [root]
    while frontier:
        below = by_parent.get(frontier.pop(), [])
        found += below
        frontier += [process.pid for process in below]
    return found


def _set_subreaper(on: bool) -> bool:
    """Sets it; returns what it was."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = ctypes.c_int()
    for option, value in (
        (_PR_GET_CHILD_SUBREAPER, ctypes.byref(before)),
        (_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(on)),
    ):
        if libc.prctl(option, value, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl: cannot become a child subreaper")
    return bool(before.value)


def send(signum: int, pids: Iterable[int]) -> set[int]:
    """Sends a signal to those of ``pids`` that are still there.

    Returns those to which this user may not send one: a role may have started them by sudo.
    """
    return {pid for pid in pids if not _may_send(signum, pid)}


def _may_send(signum: int, pid: int) -> bool:
    """Sends it, if this user may."""
    try:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)
    except PermissionError:
        return False
    return True


@final
class Descendants:
    """A context manager around a job; ``spared`` are processes that are not to be ended."""

    def __init__(self) -> None:
        self._before: set[tuple[int, int]] = set()
        self._was_subreaper = False
        self.spared: set[int] = set()

    def __enter__(self) -> Descendants:
        self._before = {(child.pid, child.start) for child in _children_of(os.getpid())}
        self._was_subreaper = _set_subreaper(True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _set_subreaper(self._was_subreaper)

    def _of_the_job(self) -> list[Process]:
        own_session = os.getsid(0)
        return [
            child
            for child in _children_of(os.getpid())
            if child.session != own_session
            and child.pid not in self.spared
            and (child.pid, child.start) not in self._before
        ]

    def running(self) -> list[int]:
        """The job's processes that have not ended (a zombie has)."""
        return [child.pid for child in self._of_the_job() if child.state not in "ZX"]

    def stopped(self) -> list[Process]:
        """Those that a signal stopped; one that a debugger holds is not."""
        return [child for child in self._of_the_job() if child.state == "T"]

    def kill_all(self, timeout_s: float) -> set[int]:
        """SIGKILL until none is left or ``timeout_s`` is over; returns those out of our reach.

        Repeated, as a process may start another between being listed and being killed.
        """
        deadline_s = time.monotonic() + timeout_s
        refused: set[int] = set()
        while (running := set(self.running()) - refused) and time.monotonic() < deadline_s:
            refused |= send(signal.SIGKILL, running)
            time.sleep(_POLL_S)
        return refused & set(self.running())

    def reap_orphans(self) -> None:
        """Takes the status of what became our child by adoption and has ended.

        To be called when all roles have been waited for: their status belongs to the supervisor.
        """
        for child in self._of_the_job():
            if child.parent == os.getpid() and child.state in "ZX":
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(child.pid, os.WNOHANG)
