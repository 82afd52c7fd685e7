"""Processor time and context switches of every thread of a running job, between two moments.

Roles are found in /proc by the job's mark. The kernel counts user and system time in ticks, and the
sum of both in nanoseconds (``schedstat``): the sum is used, divided in the proportion of the ticks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from role_samples import role_of

from byteprophet.launcher.leftovers import marked_processes

Snapshot = Sequence[tuple[str, int, int, str, Sequence[int]]]
"""Role, process id, thread id, name and counters (``look``) of each thread."""


@dataclass(frozen=True)
class Used:
    """What one thread used within a span of time.

    ``name`` is the kernel's name of the thread. ``waits`` counts switches to another thread because
    this one had to wait, ``preempted`` those because another one was to run.
    """

    role: str
    pid: int
    tid: int
    name: str
    user_s: float
    system_s: float
    waits: int
    preempted: int

    @property
    def processor_s(self) -> float:
        """User and system time."""
        return self.user_s + self.system_s


def snapshot(run_directory: str) -> Snapshot:
    """The counters of all threads of the job's roles, now: role, ids, name, and counters."""
    found = []
    for pid in (*marked_processes(run_directory), os.getpid()):
        process = Path(f"/proc/{pid}")
        try:
            role = role_of(process)
            tasks = list((process / "task").iterdir())
        except (OSError, KeyError):  # it has just ended
            continue
        for task in tasks:
            try:
                name, counters = look(task)
            except (OSError, ValueError, IndexError):  # it has just ended
                continue
            found.append((role, pid, int(task.name), name, counters))
    return found


def used(before: Snapshot, after: Snapshot) -> list[Used]:
    """What each thread used between two snapshots; a thread that used nothing counts."""
    known = {tid: counters for _, _, tid, _, counters in before}
    found = []
    for role, pid, tid, name, counters in after:
        earlier = known.get(tid, (0,) * len(counters))
        ran_ns, user, system, waits, preempted = (
            now - then for now, then in zip(counters, earlier, strict=True)
        )
        of_user = user / (user + system) if user + system > 0 else 1.0
        seconds = ran_ns / 1e9
        times_s = seconds * of_user, seconds * (1 - of_user)
        found.append(Used(role, pid, tid, name, *times_s, waits, preempted))
    return found


def look(task: Path) -> tuple[str, tuple[int, ...]]:
    """The name of the thread in ``task`` (/proc/PID/task/TID) and its counters.

    These are the time that the thread ran in nanoseconds, user and system time in ticks, and its
    switches: because it waited, and because it was preempted.
    """
    before, _, after = (task / "stat").read_text().rpartition(")")
    fields = after.split()  # the state is field 3
    ran_ns = int((task / "schedstat").read_text().split()[0])
    waits, preempted = _switches((task / "status").read_text().splitlines())
    counters = (ran_ns, int(fields[11]), int(fields[12]), waits, preempted)
    return before.partition("(")[2], counters


def _switches(lines: list[str]) -> Iterator[int]:
    for wanted in ("voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"):
        yield next(int(line.split()[1]) for line in lines if line.startswith(wanted))
