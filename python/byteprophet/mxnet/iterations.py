"""Telling the policy when an iteration begins.

MXNet's engine starts a push_pull when its gradient is there, long after the script has called it,
so the script's thread cannot say when an iteration's first gradient comes. It numbers push_pulls by
iteration instead, in BytePS' ``version``: the plug-in sees a new number (``scheduled_queue.cc``).
"""

from __future__ import annotations

NUMBERED_FROM = 1 << 30  # the plug-in looks at versions above it; a script's own are small

_latest = 0


class Iterations:
    """Counts the iterations of one trainer, on from what others of this process have counted.

    Two trainers that take turns count the same ones.
    """

    def __init__(self) -> None:
        self._number = _latest

    @property
    def number(self) -> int:
        """Of the iteration that began last; 0 before the first."""
        return self._number

    def next_version(self) -> int:
        """The ``version`` of the push_pulls of the iteration that begins now."""
        global _latest
        self._number += 1
        _latest = max(_latest, self._number)
        return NUMBERED_FROM + self._number
