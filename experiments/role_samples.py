"""What the roles of a running job hold: memory, open descriptors and threads, sampled in a thread.

Roles are found in /proc by the job's mark, as the launcher finds what is left over. The sampler's
thread writes ``samples``; read it after ``stop``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from byteprophet.launcher.leftovers import marked_processes


@dataclass(frozen=True)
class Sample:
    """One look at one role; ``time_s`` is of the monotonic clock.

    ``own_bytes`` is heap, stacks and shared memory, in memory or swapped out: what is not the
    contents of files.
    """

    role: str
    time_s: float
    own_bytes: int
    pss_bytes: int  # pages that processes share count by share
    rss_bytes: int
    descriptors: int
    threads: int


class Sampler:
    """Looks at all roles of the job in ``run_directory`` every ``period_s`` until stopped."""

    def __init__(self, run_directory: Path, period_s: float) -> None:
        self.samples: list[Sample] = []
        self._run_directory = str(run_directory.absolute())
        self._period_s = period_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread."""
        self._stopping.set()
        self._thread.join(timeout=10.0)

    def _run(self) -> None:
        while not self._stopping.wait(self._period_s):
            for pid in sorted(marked_processes(self._run_directory)):
                process = Path(f"/proc/{pid}")
                try:
                    self.samples.append(_look(process, role_of(process)))
                except (OSError, KeyError):  # it has just ended
                    continue


def role_of(process: Path) -> str:
    """As the launcher calls it."""
    environment = dict(
        item.partition("=")[::2]
        for item in (process / "environ").read_bytes().decode(errors="replace").split("\0")
    )
    return environment["BYTEPROPHET_ROLE"]


def _look(process: Path, role: str) -> Sample:
    memory = _fields(process / "smaps_rollup")
    return Sample(
        role,
        time.monotonic(),
        (memory["Pss_Anon"] + memory["Pss_Shmem"] + memory["SwapPss"]) * 1024,
        memory["Pss"] * 1024,
        memory["Rss"] * 1024,
        len(list((process / "fd").iterdir())),
        _fields(process / "status")["Threads"],
    )


def _fields(path: Path) -> Mapping[str, int]:
    """Lines like ``Pss: 1234 kB``."""
    found = {}
    for line in path.read_text().splitlines():
        name, _, rest = line.partition(":")
        value = rest.split()[:1]
        if value and value[0].isdecimal():
            found[name] = int(value[0])
    return found
