"""A flag that is set once, and that threads wait for: a ``threading.Event`` at a tenth of its cost.

An Event makes a condition and two locks, and there would be two for each gradient of a step. A flag
is one lock, which is held until the flag is set.

Threads: any thread may call ``is_set`` and ``wait``; only one at a time may call ``set``. ``set``
first notes that the flag is set, then releases the lock. A waiting thread that gets the lock passes
it on at once, so all of them get it.
"""

from __future__ import annotations

from threading import Lock


class Flag:
    """Not set when it is made."""

    __slots__ = ("_held", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._held = Lock()
        self._held.acquire()

    def is_set(self) -> bool:
        """Whether ``set`` was called."""
        return self._is_set

    def set(self) -> None:
        """Wake all threads that wait. Does nothing the second time."""
        if not self._is_set:
            self._is_set = True
            self._held.release()

    def wait(self, timeout_s: float) -> bool:
        """Wait at most ``timeout_s`` seconds, from 0. Returns whether the flag is set."""
        if not self._is_set and self._held.acquire(timeout=timeout_s):
            self._held.release()
        return self._is_set
