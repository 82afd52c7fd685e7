"""How long a rank waits for others before it says for whom it waits.

A rank that is slow, or evaluates alone, lets the others wait for long, and all is well. One that is
stopped, or hangs, looks the same. So a long wait is reported while it lasts, and is no error. After
one that came to an end, only a wait twice as long is reported.

Threads: each object belongs to one thread.
"""

from __future__ import annotations

FIRST_S = 20.0


class Patience:
    """``limit_s``: how long a wait may last before it is reported, in seconds."""

    def __init__(self) -> None:
        self.limit_s = FIRST_S

    def waited(self, took_s: float) -> None:
        """Note that a wait has come to an end after ``took_s`` seconds."""
        if took_s > self.limit_s:
            self.limit_s = 2 * took_s
