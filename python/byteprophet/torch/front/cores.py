"""Whether the cores are the limit: how long the training thread waits for one.

A thread of its own for updates gains time only where a core is free for it. Else every hand-over
costs wake-ups, colder caches, and a turn of the training thread.

Threads: one thread, the one that trains, calls everything.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

_SCARCE = 0.05
"""The share of a step in which the thread could run, and did not. Above it, cores are scarce."""
_KEPT = 0.75  # of the earlier share, when a step adds its own


class Cores:
    """Looks at the calling thread's run delay (``schedstat`` in proc(5)) once per step.

    Where the kernel does not tell it, cores are never scarce.
    """

    def __init__(self) -> None:
        self._thread = 0
        self._file: int | None = None
        self._waited_ns = self._looked_ns = 0
        self._share = 0.0

    def __del__(self) -> None:
        self._close()

    def are_scarce(self, thread: int) -> bool:
        """Whether the cores were scarce in the steps up to now. ``thread``: the caller's number."""
        fresh = thread != self._thread
        if fresh:
            self._open(thread)
        waited_ns, now_ns = self._read(), time.monotonic_ns()
        if not fresh:
            share = (waited_ns - self._waited_ns) / max(1, now_ns - self._looked_ns)
            self._share = _KEPT * self._share + (1 - _KEPT) * share
        self._waited_ns, self._looked_ns = waited_ns, now_ns
        return self._share > _SCARCE

    def _open(self, thread: int) -> None:
        self._close()
        self._thread, self._share = thread, 0.0
        with suppress(OSError):
            self._file = os.open(f"/proc/self/task/{thread}/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def _read(self) -> int:
        """How long the thread has waited for a core since it began, in nanoseconds."""
        if self._file is None:
            return 0
        try:
            return int(os.pread(self._file, 100, 0).split()[1])
        except (OSError, ValueError, IndexError):
            return self._waited_ns

    def _close(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                os.close(self._file)
            self._file = None
