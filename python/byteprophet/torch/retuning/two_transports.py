"""What changes between two steps in a job of two transports.

The mesh adopts the strategy's buckets, and the partition size of what goes to servers follows the
links. Both happen on all ranks between the same two steps, in this order, and their messages travel
over the mesh.

Threads: the training thread calls everything.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from byteprophet import _core, _plugin, schedulers
from byteprophet.errors import UserError
from byteprophet.job.routes import MESH, carried
from byteprophet.job.strategy_file import Used
from byteprophet.runtime_settings import RuntimeSettings
from byteprophet.torch.retuning.between_steps import BetweenSteps
from byteprophet.torch.retuning.given_strategy import GivenStrategy
from byteprophet.torch.retuning.partition_size import PartitionSize
from byteprophet.torch.sync.routing_synchroniser import RoutingSynchroniser
from byteprophet.tune.request import VARIABLE


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


def routed_between_steps(
    synchroniser: RoutingSynchroniser, settings: RuntimeSettings, used: Used
) -> BetweenSteps:
    """Make the object for one optimizer with the strategy ``used``, in ``settings.strategy``.

    Raises ``UserError`` if the job is to be tuned: that would change what the strategy says.
    """
    if settings.tune:
        raise UserError(
            f"{VARIABLE}: {settings.strategy} has the settings of this job: tune a job of servers "
            "alone"
        )
    of_mesh = replace(used, model=carried(used.model, used.strategy.routes, MESH))
    changes: list[BetweenSteps] = [
        GivenStrategy(synchroniser.mesh, of_mesh, settings.strategy),
    ]
    scheduler = _plugin.wanted_scheduler()
    if scheduler is not None and _plugin.load() is not None:
        overrides = _core.parse_settings(os.environ["BYTEPROPHET_SETTINGS"])  # load() has set it
        own, partition_bytes = schedulers.resolve(scheduler, overrides)
        if own.get(schedulers.LARGEST_PARTITION, 0):
            changes.append(PartitionSize(synchroniser, partition_bytes, settings.timeout_s))
    return InTurn(changes)
