"""What changes the scheduler's settings between two steps, the same on all ranks.

With BytePS that is tuning where it is asked for (``tuning.py``), else a partition size that follows
the links (``partition_size.py``), one per process, as there is one policy. Without servers it is
the plan of the groups of each optimizer (``planning.py``), or the search for their size
(``fusion_tuning.py``).
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Protocol

from byteprophet import _core, _plugin, schedulers
from byteprophet.runtime_settings import RuntimeSettings
from byteprophet.torch.partition_size import PartitionSize
from byteprophet.torch.synchroniser import Synchroniser
from byteprophet.tune.request import parse_request


class BetweenSteps(Protocol):
    """All is called by the thread that trains."""

    @property
    def settled(self) -> bool:
        """Whether nothing is changed any more."""

    def declare(self) -> None:
        """To be called wherever an optimizer declares its names, on every rank."""

    def after_step(self, owner: str, agreed: bool) -> None:
        """The optimizer that calls itself ``owner`` has stepped; ``agreed``: its order is known.

        The steps of the first owner count. ``RuntimeError`` where other ranks do not answer.
        """

    def restart(self) -> None:
        """Ranks may have come and gone, and all have the settings of the start again."""

    def drain(self) -> None:
        """Wait until nothing of ours travels any more; at the end of a job it may never arrive."""


def between_steps(
    sync: str, synchroniser: Synchroniser, settings: RuntimeSettings, fusion: int | str
) -> BetweenSteps | None:
    """What an optimizer has; the arguments are those of its making. ``UserError`` as below."""
    if sync == "byteps":
        return process_between_steps(settings.tune, settings.timeout_s)
    if synchroniser.size == 1:
        return None
    from byteprophet.torch import collective_synchroniser as collective

    assert isinstance(synchroniser, collective.CollectiveSynchroniser)
    # Of a GPU hosts do not see when gradients are ready: there is nothing to plan with.
    if fusion == collective.PLANNED and synchroniser.device_type == "cpu":
        from byteprophet.torch.planning import Planning

        return Planning(synchroniser, settings.timeout_s)
    if fusion in (collective.PLANNED, collective.TUNED):
        from byteprophet.allreduce.tuner import BufferTuner
        from byteprophet.torch.fusion_tuning import FusionTuning

        return FusionTuning(synchroniser, BufferTuner(), settings.timeout_s)
    return None


@functools.cache
def process_between_steps(tune: str, timeout_s: float) -> BetweenSteps | None:
    """What this process has; ``tune`` is BYTEPROPHET_TUNE's value.

    ``None``: nothing travels, nothing is scheduled, or the settings stay. ``UserError`` for a wrong
    value.
    """
    from byteprophet.torch.byteps_synchroniser import process_synchroniser

    scheduler, synchroniser = _plugin.wanted_scheduler(), process_synchroniser()
    if scheduler is None or _plugin.load() is None or synchroniser.size == 1:
        return None
    overrides = _core.parse_settings(os.environ["BYTEPROPHET_SETTINGS"])  # load() has set it
    settings, partition_bytes = schedulers.resolve(scheduler, overrides)
    request = parse_request(tune, scheduler, settings)
    if request is None:
        if settings.get(schedulers.LARGEST_PARTITION, 0) == 0:
            return None
        return PartitionSize(synchroniser, partition_bytes, timeout_s)
    from byteprophet.torch.tuning import Tuning  # scipy takes its time
    from byteprophet.tune.journal import Journal

    run = os.environ.get("BYTEPROPHET_RUN")
    return Tuning(request, synchroniser, Journal(Path(run) if run else None), timeout_s)
