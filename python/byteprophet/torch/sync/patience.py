"""How long a rank waits for others before it says for whom it waits.

A rank that is slow, or evaluates alone, lets the others wait for long, and all is well. One that is
stopped, or hangs, looks the same. So a long wait is reported while it lasts, and is no error. After
one that came to an end, only a wait twice as long is reported.

Threads: each object belongs to one thread, unless its owner says otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from byteprophet.errors import warn

FIRST_S = 20.0


class Patience:
    """``limit_s``: how long a wait may last before it is reported, in seconds."""

    def __init__(self) -> None:
        self.limit_s = FIRST_S

    def wait(
        self,
        wait: Callable[[float], bool],
        timeout_s: float,
        rank: int,
        awaited: Callable[[], str],
    ) -> bool:
        """Call ``wait`` with at most ``timeout_s`` seconds in all, and report a long wait.

        ``wait`` returns whether what it waits for is there, and so does this. ``awaited`` says what
        ``rank`` waits for, and why it may be late.
        """
        began_s, limit_s = time.monotonic(), self.limit_s
        is_there = wait(max(0.0, min(timeout_s, limit_s)))
        if not is_there and timeout_s > limit_s:
            warn(f"rank {rank} has waited {limit_s:g} s for {awaited()}")
            is_there = wait(timeout_s - limit_s)
            self.waited(time.monotonic() - began_s)
        return is_there

    def waited(self, took_s: float) -> None:
        """Note that a wait has come to an end after ``took_s`` seconds."""
        if took_s > self.limit_s:
            self.limit_s = 2 * took_s
