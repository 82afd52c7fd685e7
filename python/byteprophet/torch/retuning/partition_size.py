"""A partition size that adapts to the links, the same on all ranks.

A policy may prefer a size (``prophet/policy/prophet.h``): on a fast link, small partitions cost
more to handle than to send. But all ranks must partition a tensor in the same way. So from time to
time, every rank sends its preferred size together with the next iteration's gradients. At the end
of the step after that, all ranks adopt the smallest one, which is that of the slowest link. Ranks
that do not push, and those that have not measured their link yet, have no preference.

``seldom.py`` says after which steps. A policy that goes over to order of arrival, or leaves it,
prefers another size at once (``control/arrival_order.py``).

Threads: everything here runs in the training thread.
"""

from __future__ import annotations

from byteprophet.torch.retuning.between_steps import DRAIN_S
from byteprophet.torch.retuning.seldom import Seldom
from byteprophet.torch.sync.agreement import Collection
from byteprophet.torch.sync.synchroniser import Synchroniser

_NAME = "byteprophet.partition"
_PARTITION = "partition_bytes"
_WHAT = "partition sizes that ranks would like"


class PartitionSize:
    """Implements ``BetweenSteps``; one per process, or per optimizer of two transports.

    ``start_bytes`` is the job's initial size.
    """

    settled = False  # never, because links change

    def __init__(self, synchroniser: Synchroniser, start_bytes: int, timeout_s: float) -> None:
        self._synchroniser = synchroniser
        self._start_bytes = start_bytes
        self._timeout_s = timeout_s
        self._owner: str | None = None
        self.restart()

    def declare(self) -> None:
        """See ``BetweenSteps``. The optimizer that steps first from now on counts steps."""
        self._synchroniser.declare([_NAME])
        self._owner = None

    def restart(self) -> None:
        """See ``BetweenSteps``."""
        self._bytes = self._start_bytes
        self._seldom = Seldom()
        self._message: Collection | None = None

    def drain(self) -> None:
        """See ``BetweenSteps``."""
        if self._message is not None:
            self._message.arrives_within(DRAIN_S)

    def after_step(self, owner: str, agreed: bool) -> None:
        """See ``BetweenSteps``. Steps are counted from the first one with an agreed order."""
        self._owner = self._owner or owner
        if owner != self._owner or not agreed:
            return
        due = self._seldom.due()
        if self._message is not None:
            self._take_over(self._message)
        elif due:
            wish = self._synchroniser.preferred_partition_bytes()
            self._message = Collection(self._synchroniser, _NAME, wish, _WHAT)

    def _take_over(self, message: Collection) -> None:
        wishes = [wish for wish in message.wait(self._timeout_s) if wish > 0]
        self._message = None
        smallest = min(wishes, default=self._bytes)
        if smallest != self._bytes:
            self._bytes = smallest
            self._synchroniser.reconfigure({_PARTITION: smallest})
