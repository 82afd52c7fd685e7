"""Samples the counters of the network interface of a job's worker 0 in a thread.

Finds the worker in /proc by the mark in its environment. ``/proc/PID/net/dev`` shows the counters
of the worker's emulated host. The thread writes ``samples``; read them after the ``with`` block.
"""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

from byteprophet.launcher.leftovers import marked_processes

PERIOD_S = 0.02
_FIND_S = 0.2
_LOOPBACK = "lo"


class Counters:
    """Samples of the only job with a run directory in ``runs``: time in ns, bytes out, bytes in."""

    def __init__(self, runs: Path) -> None:
        self.samples: list[tuple[int, int, int]] = []
        self._runs = runs
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="counters", daemon=True)

    def __enter__(self) -> Counters:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(timeout=10.0)

    def _run(self) -> None:
        while not self._stopping.wait(_FIND_S):
            for directory in self._runs.glob("*"):
                found = marked_processes(str(directory), "worker-0")
                if found:
                    self._watch(Path(f"/proc/{found[0]}/net/dev"))
                    return

    def _watch(self, path: Path) -> None:
        with contextlib.suppress(OSError):  # the process has ended
            while not self._stopping.wait(PERIOD_S):
                text = path.read_text()
                self.samples.append((time.monotonic_ns(), *counted(text)))


def counted(text: str) -> tuple[int, int]:
    """Bytes sent and received by all interfaces but loopback, from ``/proc/PID/net/dev``."""
    sent = received = 0
    for line in text.splitlines()[2:]:
        name, _, rest = line.partition(":")
        if name.strip() != _LOOPBACK:
            fields = rest.split()
            received += int(fields[0])
            sent += int(fields[8])
    return sent, received
