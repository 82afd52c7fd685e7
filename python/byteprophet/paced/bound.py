"""Whether one lower bound holds for all iterations of a job, as its configuration tells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from byteprophet.paced.worker_config import WorkerConfig
from byteprophet.runtime_settings import STRATEGY


def why_no_bound(config: Mapping[str, Any], worker: WorkerConfig | None) -> str:
    """Why the job's workload and links give no bound for all of its iterations; "" if they do.

    ``config``: the content of ``config.toml``. ``worker``: the configuration of its paced workers;
    None if it has none.
    """
    if config.get("steps"):
        return "links change during the job"
    in_turn = worker.strategies if worker else ()
    if config.get("environment", {}).get(STRATEGY) or any(in_turn):
        return "a strategy changes the job"
    if worker and worker.next_batch_at is not None:
        return "the batch changes during the job"
    return ""
