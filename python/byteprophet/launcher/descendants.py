"""Finds every process that a job started, at any depth and even if it is detached.

While a job runs, this process is a "child subreaper": processes that roles leave behind become its
children instead of init's, so that they can be found and waited for. Roles get their own sessions,
and a process can leave a session only for a new one. So a descendant of this process belongs to the
job if it did not exist when the job began and is not in this process' session. If an application
runs a job and starts other processes in sessions of their own meanwhile, they are killed with the
job.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import final

_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37
_POLL_S = 0.02
_LINE_BYTES = 4096


@dataclass(frozen=True)
class Process:
    """A process as in /proc/PID/stat. ``start`` (clock ticks) distinguishes reused numbers."""

    pid: int
    parent: int
    session: int
    state: str
    start: int


def _children_of(root: int) -> list[Process]:
    """All processes below ``root``, at any depth."""
    by_parent: dict[int, list[Process]] = {}
    # Each job looks several times, so this avoids what pathlib and text files cost.
    with os.scandir("/proc") as entries:
        names = [entry.name for entry in entries if entry.name.isdecimal()]
    for name in names:
        try:
            text = _read(f"/proc/{name}/stat")
        except OSError:  # it has ended
            continue
        # The name before the last ")" may contain anything, even spaces and brackets.
        rest = text.rpartition(b")")[2].split()
        state = rest[0].decode("ascii")
        process = Process(int(name), int(rest[1]), int(rest[3]), state, int(rest[19]))
        by_parent.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    frontier = [root]
    while frontier:
        below = by_parent.get(frontier.pop(), [])
        found += below
        frontier += [process.pid for process in below]
    return found


def _read(path: str) -> bytes:
    """The beginning of a small file in /proc, which is more than a line of numbers has."""
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(number, _LINE_BYTES)
    finally:
        os.close(number)


def _set_subreaper(on: bool) -> bool:
    """Makes this process a child subreaper or not, and returns whether it was one."""
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
    """Sends a signal to those of ``pids`` that still exist.

    Returns those to which this user may not send one; a role may have started them with sudo.
    """
    return {pid for pid in pids if not _may_send(signum, pid)}


def _may_send(signum: int, pid: int) -> bool:
    """Sends the signal to ``pid``; False if this user has no permission."""
    try:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)
    except PermissionError:
        return False
    return True


@final
class Descendants:
    """A context manager around a job. Processes in ``spared`` do not count as the job's."""

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
        """The job's processes that have not ended. Zombies count as ended."""
        return [child.pid for child in self._of_the_job() if child.state not in "ZX"]

    def stopped(self) -> list[Process]:
        """The job's processes that a signal has stopped, without those that a debugger holds."""
        return [child for child in self._of_the_job() if child.state == "T"]

    def kill_all(self, timeout_s: float) -> set[int]:
        """Sends SIGKILL to the job's processes until none is left or ``timeout_s`` is over.

        This is repeated because a process may start another one after the list was made. Returns
        the running processes that this user may not kill.
        """
        deadline_s = time.monotonic() + timeout_s
        refused: set[int] = set()
        while (running := set(self.running()) - refused) and time.monotonic() < deadline_s:
            refused |= send(signal.SIGKILL, running)
            time.sleep(_POLL_S)
        return refused & set(self.running())

    def reap_orphans(self) -> None:
        """Waits for adopted children that have ended.

        Must be called after all roles have been waited for, because the supervisor needs their
        status.
        """
        self._reap(self._of_the_job())

    def reap_orphans_in(self, sessions: Collection[int]) -> None:
        """The same for those in ``sessions``, but not for a session's leader, which is a role."""
        every = (child for child in self._of_the_job() if child.session in sessions)
        self._reap(child for child in every if child.pid != child.session)

    def _reap(self, children: Iterable[Process]) -> None:
        for child in children:
            if child.parent == os.getpid() and child.state in "ZX":
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(child.pid, os.WNOHANG)
