"""Tells the policy when an iteration begins.

MXNet's engine starts a push_pull when its gradient is ready, long after the script has called it.
So the script's thread does not know when an iteration's first gradient is ready. It passes the
iteration's number to BytePS as the ``version`` of each push_pull, and the plug-in notices when the
number changes (``scheduled_queue.cc``).
"""

from __future__ import annotations

from byteprophet.observe.pace import process_pace

NUMBERED_FROM = 1 << 30  # the plug-in only uses versions above this; a script's own are smaller

_latest = 0


class Iterations:
    """Counts the iterations of one trainer.

    The count starts at the largest number that other trainers of this process have reached. Two
    trainers that take turns use the same numbers.
    """

    def __init__(self) -> None:
        self._number = _latest

    @property
    def number(self) -> int:
        """The number of the iteration that began last; 0 before the first one of the process."""
        return self._number

    def next_version(self) -> int:
        """Begin the next iteration and return the ``version`` of its push_pulls."""
        global _latest
        self._number += 1
        if self._number > _latest:  # otherwise, another trainer has begun it
            _latest = self._number
            process_pace.begin(self._number)
        return NUMBERED_FROM + self._number
