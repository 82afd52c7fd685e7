"""What changes between two steps in a job of two transports.

The mesh adopts the strategy's buckets, and what goes to servers follows the links
(``following_links.py``). Both happen on all ranks between the same two steps, in this order, and
their messages travel over the mesh.

Threads: the training thread calls everything.
"""

from __future__ import annotations

import os
from dataclasses import replace

from byteprophet import _core, _plugin, schedulers
from byteprophet.errors import UserError
from byteprophet.job.routes import MESH, carried
from byteprophet.job.strategy_file import Used
from byteprophet.runtime_settings import RuntimeSettings
from byteprophet.torch.retuning.between_steps import BetweenSteps
from byteprophet.torch.retuning.following_links import InTurn, following_links
from byteprophet.torch.retuning.given_strategy import GivenStrategy
from byteprophet.torch.sync.routing_synchroniser import RoutingSynchroniser
from byteprophet.tune.request import VARIABLE


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
    scheduler, plugin = _plugin.wanted_scheduler(), _plugin.load()
    if scheduler is not None and plugin is not None:
        overrides = _core.parse_settings(os.environ["BYTEPROPHET_SETTINGS"])  # load() has set it
        own, _ = schedulers.resolve(scheduler, overrides)
        changes += following_links(synchroniser, plugin, own, settings.timeout_s)
    return InTurn(changes)
