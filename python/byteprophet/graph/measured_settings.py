"""What a recorded job's policy was told while it ran: by a controller's plan, or by a tuner.

The last plan (plan.json) and the settings that tuning chose (tuning.jsonl) count; iterations before
they were taken over belong to another job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from byteprophet.control.log import PLAN_NAME, read_plan
from byteprophet.errors import UserError
from byteprophet.tune.journal import NAME as JOURNAL
from byteprophet.tune.journal import read_journal


@dataclass(frozen=True)
class Told:
    """``settings`` over those of the start. ``ready``: by tensor, when it is ready and its spread.

    ``settled_from``: the iteration, from 0, since which all of it held.
    """

    settings: Mapping[str, int] = field(default_factory=dict)
    ready: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    settled_from: int = 0


def read_told(run_directory: Path) -> Told:
    """What the job in ``run_directory`` was told; nothing where nobody told it anything."""
    told = Told()
    if (run_directory / JOURNAL).exists():
        for entry in read_journal(run_directory):
            if "chosen" in entry:
                # After this step, from 0, all ranks take them over.
                told = Told(*_chosen(run_directory / JOURNAL, entry))
    path = run_directory / PLAN_NAME
    if not path.exists():
        return told
    plan = read_plan(path)
    return Told(
        settings={**told.settings, **plan.settings},
        ready={ready.name: (ready.ready_ns, ready.spread_ns) for ready in plan.ready},
        settled_from=max(told.settled_from, plan.at_iteration - 1),
    )


def _chosen(path: Path, entry: Mapping[str, Any]) -> tuple[dict[str, int], dict[str, Any], int]:
    """Settings, no ready times, and since when."""
    settings, iteration = entry["chosen"], entry.get("iteration")
    if not isinstance(settings, dict) or type(iteration) is not int:
        raise UserError(f"{path}: an entry with chosen settings must say them and its iteration")
    for name, value in settings.items():
        if type(value) is not int:
            raise UserError(f"{path}: chosen.{name} must be a whole number, got {value!r}")
    return settings, {}, iteration + 1
