"""Measures a recorded job without servers, under any runtime."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from byteprophet.errors import UserError
from byteprophet.job import Job
from byteprophet.job.strategy import OURS
from byteprophet.job.strategy_file import Used
from byteprophet.job.times import Int64Array
from byteprophet.measure.barriered import measure_barriered
from byteprophet.measure.collectives import REDUCE_SCATTER, measure_collectives
from byteprophet.measure.processors import Use
from byteprophet.timeline.events import Events

# FSDP2 has such halves, too, but numbers them otherwise.
_OURS = re.compile(rf"{REDUCE_SCATTER}\d+\.\d+")


def measure_all_reduce(
    recorded: Sequence[Events],
    config: Mapping[str, Any],
    used: Used | None,
    use: Use | None = None,
) -> tuple[Job, Int64Array]:
    """Measure the job that recorded ``recorded``.

    Returns it with the starts of its iterations, shape (ranks, iterations + 1).
    ``config`` is the content of the run's ``config.toml``. ``used`` is its ``strategy.json``, which
    jobs of DistributedDataParallel do not have. ``use``: of the cores that ranks share, if that is
    known. UserError if a needed recording is missing.
    """
    if used is not None and used.strategy.runtime in OURS:
        return measure_collectives(recorded, config, used, use)
    halves = [
        name for events in recorded for name in events.names.values() if _OURS.fullmatch(name)
    ]
    if halves:
        raise UserError(
            f"the job splits all-reduces ('{halves[0]}') but has no strategy.json, which lists the "
            "buckets: record the job again"
        )
    return measure_barriered(recorded, config, used, use)
