"""A partition size that follows the links, the same on all ranks.

A policy may have a wish (``prophet/policy/prophet.h``: on a fast link small partitions cost more to
handle than to carry), but what is summed must be cut in the same way everywhere. So now and then
every rank says what it would like; the wishes travel beside the next iteration's gradients, and at
the end of the step after all ranks take the smallest, that of the slowest link. Ranks that do not
push, and those that do not know their link yet, say nothing.

They are asked after the first step, then after twice as many steps each time, 64 at most: links
change seldom, and a question is a message.

Threads: everything here runs in the thread that trains.
"""

from __future__ import annotations

from byteprophet.torch.agreement import Collection
from byteprophet.torch.synchroniser import Synchroniser

_NAME = "byteprophet.partition"
_PARTITION = "partition_bytes"
_WHAT = "partition sizes that ranks would like"
_LONGEST = 64  # steps from one question to the next
_DRAIN_S = 10.0  # at the end of a job, for a message that other ranks did not get to send


class PartitionSize:
    """One per process; ``start_bytes`` is what the job starts with. See ``BetweenSteps``."""

    settled = False  # links change

    def __init__(self, synchroniser: Synchroniser, start_bytes: int, timeout_s: float) -> None:
        self._synchroniser = synchroniser
        self._start_bytes = start_bytes
        self._timeout_s = timeout_s
        self._owner: str | None = None
        self.restart()

    def declare(self) -> None:
        """See ``BetweenSteps``."""
        self._synchroniser.declare([_NAME])

    def restart(self) -> None:
        """See ``BetweenSteps``."""
        self._bytes = self._start_bytes
        self._step, self._asks_at, self._interval = -1, 0, 1
        self._message: Collection | None = None

    def drain(self) -> None:
        """See ``BetweenSteps``."""
        if self._message is not None:
            self._message.arrives_within(_DRAIN_S)

    def after_step(self, owner: str, agreed: bool) -> None:
        """See ``BetweenSteps``; steps count from the first with an agreed order."""
        self._owner = self._owner or owner
        if owner != self._owner or not agreed:
            return
        self._step += 1
        if self._message is not None:
            self._take_over(self._message)
        elif self._step >= self._asks_at:
            wish = self._synchroniser.preferred_partition_bytes()
            self._message = Collection(self._synchroniser, _NAME, wish, _WHAT)
            self._interval = min(2 * self._interval, _LONGEST)
            self._asks_at = self._step + self._interval

    def _take_over(self, message: Collection) -> None:
        wishes = [wish for wish in message.wait(self._timeout_s) if wish > 0]
        self._message = None
        smallest = min(wishes, default=self._bytes)
        if smallest != self._bytes:
            self._bytes = smallest
            self._synchroniser.reconfigure({_PARTITION: smallest})
