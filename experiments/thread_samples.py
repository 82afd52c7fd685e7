"""Processor time and context switches of every thread of a running job, sampled in a thread.

Roles are found in /proc by the job's mark. The kernel counts user and system time in ticks, and the
sum of both in nanoseconds (``schedstat``): the sum is used, divided in the proportion of the ticks.
The sampler's thread writes; read after ``stop``.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from role_samples import role_of

from byteprophet.launcher.leftovers import marked_processes

_PERIOD_S = 0.25


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
    waits: float
    preempted: float

    @property
    def processor_s(self) -> float:
        """User and system time."""
        return self.user_s + self.system_s


class ThreadSampler:
    """Looks at all threads of the job in ``run_directory`` until stopped."""

    def __init__(self, run_directory: Path) -> None:
        self._run_directory = str(run_directory.absolute())
        self._names: dict[tuple[str, int, int], str] = {}
        self._samples: dict[tuple[str, int, int], list[tuple[float, ...]]] = defaultdict(list)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="thread-sampler", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread."""
        self._stopping.set()
        self._thread.join(timeout=10.0)

    def used(self, from_ns: int, until_ns: int) -> list[Used]:
        """What each thread used between two monotonic times; a thread that used nothing counts."""
        found = []
        for (role, pid, tid), samples in self._samples.items():
            times_ns, *counted = zip(*samples, strict=True)
            ran, user, system, waits, preempted = (
                float(np.diff(np.interp([from_ns, until_ns], times_ns, values))[0])
                for values in counted
            )
            of_user = user / (user + system) if user + system > 0 else 1.0
            name = self._names[role, pid, tid]
            seconds = ran / 1e9
            found.append(
                Used(
                    role,
                    pid,
                    tid,
                    name,
                    seconds * of_user,
                    seconds * (1 - of_user),
                    waits,
                    preempted,
                )
            )
        return found

    def _run(self) -> None:
        while not self._stopping.wait(_PERIOD_S):
            for pid in marked_processes(self._run_directory):
                process = Path(f"/proc/{pid}")
                try:
                    role = role_of(process)
                    tasks = list((process / "task").iterdir())
                except (OSError, KeyError):  # it has just ended
                    continue
                for task in tasks:
                    try:
                        name, sample = look(task)
                    except (OSError, ValueError, IndexError):  # it has just ended
                        continue
                    key = role, pid, int(task.name)
                    self._names[key] = name
                    self._samples[key].append(sample)


def look(task: Path) -> tuple[str, tuple[float, ...]]:
    """The name of the thread in ``task`` (/proc/PID/task/TID) and a sample of its counters.

    A sample has the monotonic time and the time that the thread ran, in nanoseconds, user and
    system time in ticks, and its switches: because it waited, and because it was preempted.
    """
    now_ns = time.monotonic_ns()
    before, _, after = (task / "stat").read_text().rpartition(")")
    fields = after.split()  # the state is field 3
    ran_ns = int((task / "schedstat").read_text().split()[0])
    waits, preempted = _switches((task / "status").read_text().splitlines())
    sample = (now_ns, ran_ns, int(fields[11]), int(fields[12]), waits, preempted)
    return before.partition("(")[2], sample


def _switches(lines: list[str]) -> Iterator[int]:
    for wanted in ("voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"):
        yield next(int(line.split()[1]) for line in lines if line.startswith(wanted))
