"""A state: all figures of one look at a run, as plain data (docs/formats.md, "Live state")."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from byteprophet.errors import one_line
from byteprophet.input_files import is_number
from byteprophet.watch.bound import Bound
from byteprophet.watch.feed import Feed
from byteprophet.watch.live_file import LiveStatus
from byteprophet.watch.logged import Warnings
from byteprophet.watch.pacing import Lateness, Pacing
from byteprophet.watch.plans import LinkEstimate, Plans, PlanState
from byteprophet.watch.rates import WorkerRates
from byteprophet.workload.run_config import link_limits_bps

SCHEMA = 1
ENDED = ("done", "failed", "interrupted")
RESTARTING = "restarting"
_RUNNING_S = 15.0
_MOST_ITERATIONS = 300
_MOST_PLANS = 20
_FACTS = ("scheduler", "workers", "servers", "local_ranks", "partition_bytes", "namespaces")


@dataclass(frozen=True)
class Seen:
    """What a look has found. ``age_s``: since a role's status was seen to change.

    ``silent_s``: since anything was seen to change; None if nothing has.
    """

    directory: Path
    config: Mapping[str, Any] | None
    summaries: Mapping[str, Mapping[str, Any]]
    statuses: Mapping[str, LiveStatus]
    age_s: Mapping[str, float]
    silent_s: float | None
    rates: Mapping[str, WorkerRates]
    pacing: Pacing
    plans: Plans
    warnings: Warnings
    bound: Bound
    feed: Feed
    straggler: str | None
    problems: tuple[str, ...]


def state_of(seen: Seen) -> dict[str, Any]:
    """The state, which JSON can hold."""
    status, failed = _status(seen)
    iterations = seen.pacing.slowest_ns()[-_MOST_ITERATIONS:]
    lateness = seen.pacing.lateness()
    median_ns = seen.pacing.slowest_median_ns()
    plan = seen.plans.current()
    limits_bps = [] if seen.config is None else link_limits_bps(seen.config)
    return {
        "schema": SCHEMA,
        "run": seen.directory.resolve().name,
        "unix_s": round(time.time(), 3),
        "status": status,
        "failed": failed,
        "silent_s": None if seen.silent_s is None else round(seen.silent_s, 1),
        "facts": _facts(seen.config),
        "iteration": {
            "count": max((one.iterations for one in seen.statuses.values()), default=0),
            "median_ns": median_ns,
            "bound_ns": seen.bound.bound_ns,
            "bound_why": seen.bound.why,
            "predicted_ns": None if plan is None else plan.predicted_ns,
            "predicted_by": None if plan is None else f"plan {plan.number}",
            "numbers": [number for number, _ in iterations],
            "slowest_ns": [duration_ns for _, duration_ns in iterations],
        },
        "workers": [_worker(role, seen, lateness, limits_bps) for role in _by_rank(seen)],
        "straggler": seen.straggler,
        "plans": {
            "adopted": seen.plans.adopted,
            "current": None if plan is None else plan.number,
            "no_plan": seen.plans.no_plan,
            "refused": [
                {"by": by, "reason": one_line(reason), "count": count}
                for (by, reason), count in sorted(seen.plans.refused.items())
            ],
            "latest": [_plan(one) for one in list(seen.plans.plans.values())[-_MOST_PLANS:]],
        },
        "tuning": seen.plans.trial,
        "warnings": {
            "counts": [
                {"role": role, "level": level, "count": count}
                for (role, level), count in sorted(seen.warnings.counts.items())
            ],
            "latest": [asdict(line) for line in seen.warnings.latest],
        },
        "happened": [asdict(one) for one in seen.feed.latest],
        "roles": _roles(seen),
        "problems": list(seen.problems),
    }


def _by_rank(seen: Seen) -> list[str]:
    return sorted(seen.statuses, key=lambda role: (seen.statuses[role].rank, role))


def _status(seen: Seen) -> tuple[str, str | None]:
    """The job's status, and why it failed.

    ``running``: something has changed lately. ``silent``: nothing has, for long. ``unknown``: that
    cannot be said yet. ``restarting``: it has failed, and is started again.
    """
    whole = seen.summaries.get("summary.json", {})
    for summary in (whole, *seen.summaries.values()):
        failed = summary.get("failed")
        if isinstance(failed, str):
            again = summary is not whole and _may_start_again(summary, seen.config)
            return RESTARTING if again else str(summary.get("status", "failed")), one_line(failed)
    if whole.get("status") in ENDED:
        return str(whole["status"]), None
    ended = bool(seen.statuses) and all(one.ended for one in seen.statuses.values())
    if ended and (seen.summaries or not (seen.config or {}).get("max_restarts")):
        return "done", None
    if seen.silent_s is not None:
        return ("running" if seen.silent_s < _RUNNING_S else "silent"), None
    # Each host of a job that was started role by role has only its own roles' summaries.
    return ("done" if seen.summaries and not seen.statuses else "unknown"), None


def _may_start_again(summary: Mapping[str, Any], config: Mapping[str, Any] | None) -> bool:
    """Whether the job is started again, as far as a role's own summary tells."""
    restarts, most = summary.get("restarts"), (config or {}).get("max_restarts")
    if not isinstance(restarts, int) or not isinstance(most, int):
        return False
    return summary.get("status") == "failed" and restarts < most


def _facts(config: Mapping[str, Any] | None) -> dict[str, Any]:
    if config is None:
        return {}
    return {
        **{name: config.get(name) for name in _FACTS},
        "bandwidth_bps": config.get("bandwidth_bps"),
        "worker_bandwidth_bps": dict(config.get("worker_bandwidth_bps") or {}),
        "settings": dict(config["settings"]),
        "command": one_line(" ".join(map(str, config.get("command") or ()))),
    }


def _worker(
    role: str,
    seen: Seen,
    lateness: Mapping[str, Lateness],
    limits_bps: Sequence[int | None],
) -> dict[str, Any]:
    """``limits_bps``: the payload to which links were limited, by rank; empty: not known."""
    status = seen.statuses[role]
    history = seen.rates[role]
    rates = history.latest(seen.age_s[role])
    late = lateness.get(role)
    points = history.points()
    columns = list(zip(*points, strict=True)) if points else [()] * 5
    names = ("unix_s", "push_bps", "pull_bps", "in_flight_bytes", "wait_share")
    return {
        "role": role,
        "rank": status.rank,
        "age_s": round(seen.age_s[role], 1),
        "ended": status.ended,
        "watching": status.watching,
        "iterations": status.iterations,
        "median_ns": seen.pacing.median_ns(role),
        "late": None if late is None else asdict(late),
        "limit_bps": limits_bps[status.rank] if status.rank < len(limits_bps) else None,
        "push_bps": None if rates is None else rates.push_bps,
        "pull_bps": None if rates is None else rates.pull_bps,
        "wait_share": None if rates is None else rates.wait_share,
        "held_ns": None if rates is None else rates.held_ns,
        "travel_ns": None if rates is None else rates.travel_ns,
        "peers_ns": None if rates is None else rates.peers_ns,
        "links": [] if rates is None else [asdict(link) for link in rates.links],
        "estimates": [
            _estimate(one) for one in seen.plans.estimates.values() if one.worker == role
        ],
        "waits": [wait.model_dump() for wait in status.waits],
        "tensors": [tensor.model_dump() for tensor in status.tensors],
        "series": {name: list(column) for name, column in zip(names, columns, strict=True)},
        "totals": {
            "wait_ns": status.wait_ns,
            "transfers": status.transfers,
            "held_ns": status.held_ns,
            "travel_ns": status.travel_ns,
            "peers_ns": status.peers_ns,
            "links": [link.model_dump() for link in status.links],
        },
    }


def _estimate(one: LinkEstimate) -> dict[str, Any]:
    return {
        "server": one.server,
        "direction": one.direction,
        "bandwidth_bps": one.bandwidth_bps,
        "spread_bps": one.spread_bps,
    }


def _plan(plan: PlanState) -> dict[str, Any]:
    return {
        "number": plan.number,
        "at_iteration": plan.at_iteration,
        "workers": len(plan.workers),
        "adopted": len(plan.adopted),
        "predicted_ns": plan.predicted_ns,
        "measured_ns": plan.measured_ns,
        "error": plan.error,
        "withdrawn": plan.withdrawn,
        "settings": dict(plan.settings),
        "reason": one_line(plan.reason),
    }


def _roles(seen: Seen) -> list[dict[str, Any]]:
    """Every role that has a log, a status or a result, and how it ended, if it has."""
    ended: dict[str, Mapping[str, Any]] = {}
    for summary in seen.summaries.values():
        rows = summary.get("roles")
        for row in rows if isinstance(rows, list) else []:
            if isinstance(row, dict) and isinstance(row.get("name"), str):
                ended[row["name"]] = row
    names = sorted({*seen.warnings.roles, *seen.statuses, *ended})
    return [
        {
            "name": name,
            "exit_status": _number(ended.get(name, {}).get("exit_status")),
            "cpu_s": _number(ended.get(name, {}).get("cpu_s")),
        }
        for name in names
    ]


def _number(value: Any) -> int | float | None:
    return value if is_number(value) else None
