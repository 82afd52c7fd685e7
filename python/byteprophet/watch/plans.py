"""What the controller's and the tuner's logs say so far: plans, estimates of links, trials.

Lines that are not events are counted, and otherwise left out: the log may be written to meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from byteprophet.control.log import NAME as CONTROL
from byteprophet.input_files import has_schema, is_number, parse_json
from byteprophet.tune.journal import NAME as TUNING
from byteprophet.watch.tail import Tail, new_lines

_MOST_BYTES = 1 << 26
_MOST_PLANS = 50
_MOST_NEWS = 100
_LARGEST = 1 << 62


@dataclass
class PlanState:
    """A plan. ``measured_ns``, ``error``: None until measured. ``withdrawn``: no worker has it.

    ``adopted``: the workers that have begun to use it, of ``workers``.
    """

    number: int
    at_iteration: int
    workers: tuple[str, ...]
    predicted_ns: int
    reason: str
    settings: Mapping[str, int]
    adopted: list[str] = field(default_factory=list)
    measured_ns: int | None = None
    error: float | None = None
    withdrawn: bool = False


@dataclass(frozen=True)
class LinkEstimate:
    """What the network monitor of ``worker`` estimated; ``server`` None: all together."""

    worker: str
    server: int | None
    direction: str
    bandwidth_bps: int | None
    spread_bps: int | None


class Plans:
    """The logs of a run. ``bad_lines``: by file, how many lines were not understood."""

    def __init__(self, run_directory: Path) -> None:
        self._control = Tail(run_directory / CONTROL, _MOST_BYTES)
        self._tuning = Tail(run_directory / TUNING, _MOST_BYTES)
        self._forget_plans()
        self._forget_trial()
        self.bad_lines: dict[str, int] = {}
        self._news: deque[str] = deque(maxlen=_MOST_NEWS)

    def _forget_plans(self) -> None:
        self.plans: dict[int, PlanState] = {}
        self.adopted = 0  # plans that some worker has adopted
        self.estimates: dict[tuple[str, int | None, str], LinkEstimate] = {}
        self.refused: dict[tuple[str, str], int] = {}
        self.no_plan: str | None = None  # why the latest attempt gave none

    def _forget_trial(self) -> None:
        self.trial: dict[str, Any] | None = None

    def look(self, problem: Callable[[str], None]) -> int:
        """Takes in what was appended since the last call, and returns the number of lines.

        A new file is of another start of the job, which has none of the plans of the one before.
        ``problem`` is told of files that cannot be read.
        """
        found = 0
        for tail, take, forget in (
            (self._control, self._event, self._forget_plans),
            (self._tuning, self._trial, self._forget_trial),
        ):
            files = tail.files
            lines = new_lines(tail, problem)
            if tail.files > files:
                forget()
            for line in lines:
                found += 1
                try:
                    entry = parse_json(line)
                    if not has_schema(entry, 1):
                        raise ValueError
                    take(entry)
                except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError):
                    name = tail.path.name
                    self.bad_lines[name] = self.bad_lines.get(name, 0) + 1
        while len(self.plans) > _MOST_PLANS:
            del self.plans[min(self.plans)]
        return found

    def take_news(self) -> list[str]:
        """What has happened to plans since the last call, one line each."""
        news, self._news = list(self._news), deque(maxlen=_MOST_NEWS)
        return news

    def current(self) -> PlanState | None:
        """The latest plan that some worker has adopted."""
        used = [plan for plan in self.plans.values() if plan.adopted and not plan.withdrawn]
        return max(used, key=lambda plan: plan.number, default=None)

    def _event(self, event: Mapping[str, Any]) -> None:
        kind = event["event"]
        if not isinstance(kind, str):
            raise ValueError("event")
        if kind == "plan":
            self.no_plan = None
            plan = PlanState(
                _whole(event, "number"),
                _whole(event, "at_iteration"),
                tuple(str(worker) for worker in event["workers"]),
                _whole(event, "predicted_iteration_ns"),
                str(event["reason"]),
                {str(name): int(value) for name, value in event.get("settings", {}).items()},
            )
            self.plans[plan.number] = plan
        elif kind == "no plan":
            self.no_plan = f"{event['reason']}: {event['error']}"
            self._news.append(f"no plan: {self.no_plan}")
        elif kind == "refused":
            self.refused[str(event["by"]), str(event["reason"])] = _whole(event, "count")
        elif kind == "samples":
            worker = str(event["worker"])
            for sample in event["samples"]:
                self._estimate(worker, sample)
        elif kind in ("adopted", "outcome", "withdrawn"):
            # A plan that is missing here is older than those that are kept.
            known = self.plans.get(_whole(event, "plan"))
            if known is not None:
                self._about(known, kind, event)

    def _about(self, plan: PlanState, kind: str, event: Mapping[str, Any]) -> None:
        if kind == "adopted":
            self.adopted += not plan.adopted
            worker = str(event["worker"])
            if worker not in plan.adopted:
                plan.adopted.append(worker)
                self._news.append(f"plan {plan.number} adopted by {worker}")
        elif kind == "outcome":
            plan.measured_ns = _whole(event, "measured_iteration_ns")
            plan.error = _finite(event, "error")
            self._news.append(f"plan {plan.number} measured: {plan.error:+.1%} of its prediction")
        else:
            plan.withdrawn = True
            self._news.append(f"plan {plan.number} withdrawn")

    def _estimate(self, worker: str, sample: Mapping[str, Any]) -> None:
        server = None if sample["server"] is None else _whole(sample, "server")
        direction = sample["direction"]
        if direction not in ("push", "pull"):
            raise ValueError
        bandwidth_bps, spread_bps = (
            None if sample[name] is None else _whole(sample, name)
            for name in ("bandwidth_bps", "spread_bps")
        )
        self.estimates[worker, server, direction] = LinkEstimate(
            worker, server, direction, bandwidth_bps, spread_bps
        )

    def _trial(self, entry: Mapping[str, Any]) -> None:
        chosen = entry.get("chosen")
        settings = entry["settings"] if chosen is None else chosen
        self.trial = {
            "iteration": _whole(entry, "iteration"),
            "settings": {str(name): int(value) for name, value in settings.items()},
            "iteration_ns": _whole(entry, "iteration_ns"),
            "chosen": chosen is not None,
        }


def _finite(table: Mapping[str, Any], name: str) -> float:
    value = table[name]
    if not is_number(value):
        raise ValueError(name)
    return float(value)


def _whole(table: Mapping[str, Any], name: str) -> int:
    value = table[name]
    if type(value) is not int or not 0 <= value <= _LARGEST:
        raise ValueError(name)
    return value
