"""Settings and ready times that a recorded job's policy received while it ran.

They come from the last plan of a controller that workers adopted (plan.json), or else from the
order on which they agreed (order.json), and from tuning (tuning.jsonl). Iterations before they took
effect do not belong to the measured job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from byteprophet.control.log import PLAN_NAME, read_plan
from byteprophet.errors import UserError
from byteprophet.job.order_file import Order, read_order
from byteprophet.schedulers import PLANNED_FOR
from byteprophet.tune.journal import NAME as JOURNAL
from byteprophet.tune.journal import read_journal


@dataclass(frozen=True)
class Told:
    """``settings`` replace those of the start. ``ready``: ready time and spread, by tensor.

    ``settled_from``: 0-based index of the first iteration in which all of it was in effect.
    """

    settings: Mapping[str, int] = field(default_factory=dict)
    ready: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    settled_from: int = 0


def read_told(run_directory: Path) -> Told:
    """Settings and ready times that the job in ``run_directory`` received, empty if none."""
    told = Told()
    if (run_directory / JOURNAL).exists():
        for entry in read_journal(run_directory):
            if "chosen" in entry:
                # All ranks apply them after this step (0-based).
                told = Told(*_chosen(run_directory / JOURNAL, entry))
    order = read_order(run_directory)
    if order is not None:
        told = _with_order(told, order)
    path = run_directory / PLAN_NAME
    if not path.exists():
        return told
    plan = read_plan(path)
    settings = {**told.settings, **plan.settings}
    if order is not None and not settings[PLANNED_FOR]:  # the plan has no order
        settings[PLANNED_FOR] = order.bandwidth_bps
    return Told(
        settings=settings,
        ready={ready.name: (ready.ready_ns, ready.spread_ns) for ready in plan.ready},
        settled_from=max(told.settled_from, plan.at_iteration - 1),
    )


def _with_order(told: Told, order: Order) -> Told:
    return Told(
        settings={**told.settings, PLANNED_FOR: order.bandwidth_bps},
        ready={name: (ready_ns, 0) for name, ready_ns in order.ready.items()},
        settled_from=max(told.settled_from, order.since - 1),
    )


def _chosen(path: Path, entry: Mapping[str, Any]) -> tuple[dict[str, int], dict[str, Any], int]:
    """The chosen settings, no ready times, and the iteration from which the settings hold."""
    settings, iteration = entry["chosen"], entry.get("iteration")
    if not isinstance(settings, dict) or type(iteration) is not int:
        raise UserError(f"{path}: an entry with chosen settings needs them and an iteration")
    for name, value in settings.items():
        if type(value) is not int:
            raise UserError(f"{path}: chosen.{name} must be a whole number, got {value!r}")
    return settings, {}, iteration + 1
