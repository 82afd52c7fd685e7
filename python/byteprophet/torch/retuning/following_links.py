"""What follows the links and the ready times in a job with servers, the same on all ranks.

Threads: the training thread calls everything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from byteprophet import schedulers
from byteprophet._plugin import Plugin
from byteprophet.torch.retuning.between_steps import BetweenSteps
from byteprophet.torch.retuning.common_order import CommonOrder
from byteprophet.torch.retuning.partition_size import PartitionSize
from byteprophet.torch.sync.order_planner import OrderPlanner
from byteprophet.torch.sync.synchroniser import Synchroniser


class InTurn:
    """Runs several ``changes``, one after the other. ``BetweenSteps`` describes the methods."""

    def __init__(self, changes: Sequence[BetweenSteps]) -> None:
        self._changes = changes

    @property
    def settled(self) -> bool:
        """Whether all have come to an end."""
        return all(each.settled for each in self._changes)

    def declare(self) -> None:
        """See ``BetweenSteps``."""
        for each in self._changes:
            each.declare()

    def after_step(self, owner: str, agreed: bool) -> None:
        """See ``BetweenSteps``."""
        for each in self._changes:
            each.after_step(owner, agreed)

    def restart(self) -> None:
        """See ``BetweenSteps``."""
        for each in self._changes:
            each.restart()

    def drain(self) -> None:
        """See ``BetweenSteps``."""
        for each in self._changes:
            each.drain()


def following_links(
    synchroniser: Synchroniser, plugin: Plugin, settings: Mapping[str, int], timeout_s: float
) -> list[BetweenSteps]:
    """What changes with the policy's complete ``settings``.

    Workers whose policy lets partitions grow agree on their size, and those whose policy plans an
    order agree on the order. The latter exchange messages whatever the settings are on this host.
    """
    found: list[BetweenSteps] = []
    if settings.get(schedulers.LARGEST_PARTITION, 0):
        start_bytes = settings[schedulers.PARTITION]
        found.append(PartitionSize(synchroniser, start_bytes, timeout_s))
    if schedulers.COMMON_ORDER in settings:
        found.append(CommonOrder(synchroniser, OrderPlanner(plugin), timeout_s))
    return found
