"""CPU time of the roles of a running job over time, sampled in a thread.

The sampler's thread writes; read it after ``stop``.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
from role_samples import role_of

from byteprophet.launcher.leftovers import marked_processes

_PERIOD_S = 0.1
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class CpuSampler:
    """Looks at all roles of the job in ``run_directory`` until stopped."""

    def __init__(self, run_directory: Path) -> None:
        self._run_directory = str(run_directory.absolute())
        self._samples: dict[tuple[str, int], list[tuple[int, float]]] = defaultdict(list)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cpu-sampler", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread."""
        self._stopping.set()
        self._thread.join(timeout=10.0)

    def cpu_s(self, kind: str, from_ns: int, until_ns: int) -> float:
        """CPU seconds of all roles of ``kind`` (worker, server) between two monotonic times."""
        total = 0.0
        for (role, _), samples in self._samples.items():
            if role.startswith(kind):
                times_ns, used_s = zip(*samples, strict=True)
                until, since = np.interp([until_ns, from_ns], times_ns, used_s)
                total += float(until - since)
        return total

    def _run(self) -> None:
        while not self._stopping.wait(_PERIOD_S):
            for pid in marked_processes(self._run_directory):
                process = Path(f"/proc/{pid}")
                try:
                    role = role_of(process)
                    # After the command's name, which is in brackets: state is field 3.
                    fields = (process / "stat").read_text().rpartition(")")[2].split()
                except (OSError, KeyError):  # it has just ended
                    continue
                ticks = int(fields[11]) + int(fields[12])
                sample = (time.monotonic_ns(), ticks / _TICKS_PER_S)
                self._samples[role, pid].append(sample)
