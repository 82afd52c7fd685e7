"""Makes the code that changes settings between two steps, the same on all ranks.

With BytePS, there is one such object per process. It tunes settings if requested (``tuning.py``).
Otherwise, what follows the links changes with them (``following_links.py``). Without servers, each
optimizer has an object that plans its buckets (``planning.py``), searches for their size
(``fusion_tuning.py``), or takes them from a strategy file (``given_strategy.py``). A job of two
transports has both (``two_transports.py``).
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

from byteprophet import _core, _plugin, schedulers
from byteprophet.job.strategy import MIXED
from byteprophet.job.strategy_file import Used
from byteprophet.runtime_settings import RuntimeSettings
from byteprophet.torch.retuning.between_steps import BetweenSteps
from byteprophet.torch.retuning.following_links import InTurn, following_links
from byteprophet.torch.sync.bucketing import PLANNED, TUNED
from byteprophet.torch.sync.synchroniser import Synchroniser
from byteprophet.tune.request import parse_request


def between_steps(
    sync: str,
    synchroniser: Synchroniser,
    settings: RuntimeSettings,
    fusion: int | str,
    given: Used | None = None,
) -> BetweenSteps | None:
    """Make the object for one optimizer, from the arguments with which the optimizer is made.

    ``given`` is the strategy in ``settings.strategy``. Returns None if no settings are changed.
    Raises ``UserError`` if ``settings.tune`` is invalid.
    """
    if synchroniser.size == 1:
        return None
    if sync == "byteps":
        return process_between_steps(settings.tune, settings.timeout_s)
    if sync == MIXED:
        from byteprophet.torch.retuning.two_transports import routed_between_steps
        from byteprophet.torch.sync.routing_synchroniser import RoutingSynchroniser

        assert isinstance(synchroniser, RoutingSynchroniser)
        assert given is not None
        return routed_between_steps(synchroniser, settings, given)
    from byteprophet.torch.sync.collective_synchroniser import CollectiveSynchroniser

    assert isinstance(synchroniser, CollectiveSynchroniser)
    if given is not None:
        from byteprophet.torch.retuning.given_strategy import GivenStrategy

        return GivenStrategy(synchroniser, given, settings.strategy)
    # A host does not see when gradients are ready on a GPU, so it has no times to plan with.
    if fusion == PLANNED and synchroniser.device_type == "cpu":
        from byteprophet.torch.retuning.planning import Planning

        return Planning(synchroniser, settings.timeout_s)
    if fusion in (PLANNED, TUNED):
        from byteprophet.allreduce.tuner import BucketTuner
        from byteprophet.torch.retuning.fusion_tuning import FusionTuning

        return FusionTuning(synchroniser, BucketTuner(), settings.timeout_s)
    return None


@functools.cache
def process_between_steps(tune: str, timeout_s: float) -> BetweenSteps | None:
    """Make the object for this process. ``tune`` is the value of BYTEPROPHET_TUNE.

    Call this in a job of several ranks only. The result stays the same when ranks leave or join.
    Returns None if nothing is scheduled, or if the settings stay as they are. Raises ``UserError``
    if ``tune`` is invalid.
    """
    from byteprophet.torch.sync.byteps_synchroniser import process_synchroniser

    scheduler, synchroniser = _plugin.wanted_scheduler(), process_synchroniser()
    plugin = _plugin.load()
    if scheduler is None or plugin is None:
        return None
    overrides = _core.parse_settings(os.environ["BYTEPROPHET_SETTINGS"])  # load() has set it
    settings, _ = schedulers.resolve(scheduler, overrides)
    request = parse_request(tune, scheduler, settings)
    if request is None:
        changes = following_links(synchroniser, plugin, settings, timeout_s)
        return InTurn(changes) if changes else None
    from byteprophet.torch.retuning.tuning import Tuning  # importing scipy takes time
    from byteprophet.tune.journal import Journal

    run = os.environ.get("BYTEPROPHET_RUN")
    return Tuning(request, synchroniser, Journal(Path(run) if run else None), timeout_s)
