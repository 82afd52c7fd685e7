"""A flag that is set once, and that threads wait for: a ``threading.Event`` at a tenth of its cost.

An Event makes a condition and two locks, and there would be two for each gradient of a step. Most
flags are set before anybody waits. So a flag makes a lock only for the first thread that waits; the
lock is held until the flag is set.

Threads: any thread may call ``is_set`` and ``wait``; only one at a time may call ``set``. ``set``
first notes that the flag is set, then looks for a lock to release. A thread that waits first leaves
its lock there, then looks whether the flag is set. So one of the two sees the other. A waiting
thread that gets the lock passes it on at once, so all of them get it.
"""

from __future__ import annotations

import os
from threading import Lock

_making = Lock()  # of the lock of any flag


def _renew() -> None:
    global _making
    _making = Lock()


os.register_at_fork(after_in_child=_renew)  # another thread may have held it


class Flag:
    """Not set when it is made."""

    __slots__ = ("_held", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._held: Lock | None = None

    def is_set(self) -> bool:
        """Whether ``set`` was called."""
        return self._is_set

    def set(self) -> None:
        """Wake all threads that wait. Does nothing the second time."""
        if not self._is_set:
            self._is_set = True
            if self._held is not None:
                self._held.release()

    def wait(self, timeout_s: float) -> bool:
        """Wait at most ``timeout_s`` seconds, from 0. Returns whether the flag is set."""
        if self._is_set:
            return True
        with _making:
            if self._held is None:
                held = Lock()
                held.acquire()
                self._held = held
        if not self._is_set and self._held.acquire(timeout=timeout_s):
            self._held.release()
        return self._is_set
