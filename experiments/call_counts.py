"""Counts the system calls of a job's workers and servers, by ``strace``.

strace stops a thread at every call, so the job runs several times slower: times of such a job mean
nothing, but its numbers of calls per byte do. A tracer is attached to each role as soon as it
starts, and ends with it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
from collections import Counter
from pathlib import Path

from role_samples import role_of

from byteprophet.launcher.leftovers import marked_processes

_PERIOD_S = 0.2
_LONGEST_S = 60.0  # from the end of a role to the end of its tracer
_ROW = re.compile(r"^\s*[\d.]+\s+[\d.]+\s+\d+\s+(?P<calls>\d+)\s+(?:\d+\s+)?(?P<name>\w+)$")
_KINDS = {
    "send": ("sendto", "sendmsg", "sendmmsg", "write", "writev"),
    "receive": ("recvfrom", "recvmsg", "recvmmsg", "read", "readv"),
    "sockets": ("poll", "ppoll", "epoll_wait", "epoll_pwait", "epoll_ctl", "select", "pselect6"),
    "locks": ("futex",),
    "sleeps": ("nanosleep", "clock_nanosleep", "sched_yield"),
    "memory": ("mmap", "munmap", "madvise", "brk", "mremap"),
}
KINDS = tuple(_KINDS)


def why_not() -> str | None:
    """Why calls cannot be counted, or None."""
    return None if shutil.which("strace") else "strace is not installed: apt-get install strace"


class CallCounter:
    """Traces the roles of the job in ``run_directory``; writes files there."""

    def __init__(self, run_directory: Path) -> None:
        self._directory = run_directory
        self._tracers: dict[int, subprocess.Popen[bytes]] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="call-counter", daemon=True)
        self._thread.start()

    def stop(self) -> Counter[str]:
        """The calls of all roles by kind; call it when the roles have ended."""
        self._stopping.set()
        self._thread.join(timeout=10.0)
        counts: Counter[str] = Counter()
        for pid, tracer in self._tracers.items():
            try:
                tracer.wait(_LONGEST_S)
            except subprocess.TimeoutExpired:
                tracer.kill()
            path = self._path(pid)
            if path.exists():
                counts += parse(path.read_text())
        return counts

    def _run(self) -> None:
        while not self._stopping.wait(_PERIOD_S):
            for pid in marked_processes(str(self._directory.absolute())):
                try:
                    role = role_of(Path(f"/proc/{pid}"))
                except (OSError, KeyError):  # it has just ended
                    continue
                if pid not in self._tracers and role.startswith(("worker", "server")):
                    command = ["strace", "-f", "-c", "-p", str(pid), "-o", str(self._path(pid))]
                    self._tracers[pid] = subprocess.Popen(
                        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                    )

    def _path(self, pid: int) -> Path:
        return self._directory / f"calls-{pid}.txt"


def parse(text: str) -> Counter[str]:
    """The calls by kind in the table that ``strace -c`` writes."""
    kinds = {name: kind for kind, names in _KINDS.items() for name in names}
    counts: Counter[str] = Counter()
    for line in text.splitlines():
        row = _ROW.match(line)
        if row is not None and row["name"] in kinds:
            counts[kinds[row["name"]]] += int(row["calls"])
    return counts
