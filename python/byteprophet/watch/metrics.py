"""A state as Prometheus' metrics, in its text format 0.0.4.

https://prometheus.io/docs/instrumenting/exposition_formats/ describes the format. Names, types and
base units (seconds, bytes) are as Prometheus recommends. A figure that is not known has no sample.
``FAMILIES`` lists all metrics; page/grafana.json draws them.

Counters of traffic and waits grow only while somebody watches, which a viewer with ``--metrics``
always does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_PREFIX = "byteprophet_"
FAMILIES: Mapping[str, tuple[str, str]] = {
    "job_running": ("gauge", "1 while the job runs, 0 otherwise."),
    "job_failed": ("gauge", "1 if the job has failed, 0 otherwise."),
    "iterations_total": ("counter", "Iterations that a worker has begun."),
    "iteration_seconds": ("gauge", "Median of a worker's latest iterations."),
    "iteration_bound_seconds": ("gauge", "The shortest iteration that any schedule can reach."),
    "iteration_predicted_seconds": ("gauge", "The iteration that the current plan predicts."),
    "wait_seconds_total": ("counter", "Time that a worker's training waited for parameters."),
    "transfers_total": ("counter", "Partitions pushed and pulled by a worker."),
    "held_seconds_total": ("counter", "Time that partitions waited for the policy, summed up."),
    "peers_seconds_total": (
        "counter",
        "Time from acknowledgement to answer: waits for other workers' pushes, and travel.",
    ),
    "link_pushed_bytes_total": ("counter", "Payload that a worker pushed to a server."),
    "link_pulled_bytes_total": ("counter", "Payload that a worker pulled from a server."),
    "link_busy_seconds_total": ("counter", "Time in which anything was in flight, by direction."),
    "link_in_flight_bytes": ("gauge", "Largest number of bytes in flight at once, lately."),
    "link_bandwidth_bytes_per_second": (
        "gauge",
        "Bandwidth that the network monitor estimates; server 'all': the worker's own link.",
    ),
    "link_limit_bytes_per_second": ("gauge", "Payload that a worker's link was limited to."),
    "straggler_last_ratio": ("gauge", "Share of the latest iterations that a worker began last."),
    "straggler_behind_seconds": ("gauge", "Median time by which a worker begins iterations late."),
    "plans_adopted_total": ("counter", "Plans of the controller that a worker has adopted."),
    "plan_number": ("gauge", "The number of the plan in use."),
    "log_lines_total": ("counter", "Warnings and errors of byteprophet in a role's log."),
    "role_exit_status": ("gauge", "How a role ended; no sample while it runs."),
    "problems": ("gauge", "What the viewer cannot show now, such as files that it cannot read."),
}

_Sample = tuple[Mapping[str, str], float | int | None]


def metrics_text(state: Mapping[str, Any]) -> str:
    """The text for a scrape of ``state``."""
    run = {"run": str(state["run"])}
    lines: list[str] = []
    for name, samples in _samples(state).items():
        kind, help_text = FAMILIES[name]
        known = [(labels, value) for labels, value in samples if value is not None]
        if not known:
            continue
        lines += [f"# HELP {_PREFIX}{name} {help_text}", f"# TYPE {_PREFIX}{name} {kind}"]
        lines += [f"{_PREFIX}{name}{_labels({**run, **labels})} {_value(v)}" for labels, v in known]
    return "\n".join(lines) + "\n"


def _samples(state: Mapping[str, Any]) -> dict[str, list[_Sample]]:
    """By the name of a family."""
    iteration, plans = state["iteration"], state["plans"]
    found: dict[str, list[_Sample]] = {
        "job_running": [({}, int(state["status"] == "running"))],
        "job_failed": [({}, int(state["status"] == "failed"))],
        "iteration_bound_seconds": [({}, _seconds(iteration["bound_ns"]))],
        "iteration_predicted_seconds": [({}, _seconds(iteration["predicted_ns"]))],
        "plans_adopted_total": [({}, plans["adopted"])],
        "plan_number": [({}, plans["current"])],
        "log_lines_total": [
            ({"role": row["role"], "level": row["level"]}, row["count"])
            for row in state["warnings"]["counts"]
        ],
        "role_exit_status": [({"role": r["name"]}, r["exit_status"]) for r in state["roles"]],
        "problems": [({}, len(state["problems"]))],
    }
    for worker in state["workers"]:
        for name, labels, value in _of_worker(worker):
            found.setdefault(name, []).append(({"worker": worker["role"], **labels}, value))
    return found


def _of_worker(
    worker: Mapping[str, Any],
) -> Iterable[tuple[str, Mapping[str, str], float | int | None]]:
    late, totals = worker["late"], worker["totals"]
    yield "iterations_total", {}, worker["iterations"]
    yield "iteration_seconds", {}, _seconds(worker["median_ns"])
    yield "wait_seconds_total", {}, _seconds(totals["wait_ns"])
    yield "transfers_total", {}, totals["transfers"]
    yield "held_seconds_total", {}, _seconds(totals["held_ns"])
    yield "peers_seconds_total", {}, _seconds(totals["peers_ns"])
    yield "link_limit_bytes_per_second", {}, _bytes_per_s(worker["limit_bps"])
    if late is not None:
        yield "straggler_last_ratio", {}, late["last"] / late["of"]
        yield "straggler_behind_seconds", {}, _seconds(late["behind_ns"])
    for link in totals["links"]:
        server = {"server": str(link["server"])}
        yield "link_pushed_bytes_total", server, link["push_bytes"]
        yield "link_pulled_bytes_total", server, link["pull_bytes"]
        for direction in ("push", "pull"):
            busy_s = _seconds(link[f"{direction}_busy_ns"])
            yield "link_busy_seconds_total", {**server, "direction": direction}, busy_s
        yield "link_in_flight_bytes", server, link["in_flight_bytes"]
    for estimate in worker["estimates"]:
        server = {"server": "all" if estimate["server"] is None else str(estimate["server"])}
        labels = {**server, "direction": estimate["direction"]}
        yield "link_bandwidth_bytes_per_second", labels, _bytes_per_s(estimate["bandwidth_bps"])


def _seconds(time_ns: int | None) -> float | None:
    return None if time_ns is None else time_ns / 1e9


def _bytes_per_s(rate_bps: int | None) -> float | None:
    return None if rate_bps is None else rate_bps / 8


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    text = value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
    return text.encode("utf-8", "replace").decode()


def _value(value: float | int) -> str:
    if isinstance(value, int):
        return str(value)
    return repr(value) if math.isfinite(value) else "NaN"
