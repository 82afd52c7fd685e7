"""Run directories made by hand, as launchers and workers write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MS_NS = 1_000_000
CONFIG = """
schema = 1
command = ["python", "train.py"]
workers = 2
local_ranks = 1
servers = 1
scheduler = "prophet"
bandwidth_bps = 1000000000
partition_bytes = 262144
namespaces = true
steps = []
[settings]
window_max_bytes = 2097152
[worker_bandwidth_bps]
[environment]
"""


def status(rank: int = 0, **fields: Any) -> dict[str, Any]:
    """A status file of a worker that has told of three iterations."""
    return {
        "schema": 1,
        "role": f"worker-{rank}",
        "rank": rank,
        "size": 2,
        "pid": 100 + rank,
        "machine": "here",
        "monotonic_ns": 10_000 * MS_NS,
        "unix_ns": 1_700_000_000_000 * MS_NS,
        "ended": False,
        "watched": 1,
        "watching": True,
        "iterations": 3,
        "starts": [[1, 1000 * MS_NS], [2, 1100 * MS_NS], [3, 1200 * MS_NS]],
        "wait_ns": 0,
        "waits": [],
        "transfers": 0,
        "held_ns": 0,
        "travel_ns": 0,
        "peers_ns": 0,
        "links": [],
        "tensors": [],
        "interfaces": None,
        **fields,
    }


def link(server: int = 0, **fields: int) -> dict[str, int]:
    """Sums of a link."""
    names = (
        "push_bytes", "pull_bytes", "push_busy_ns", "pull_busy_ns", "in_flight_bytes"
    )  # fmt: skip
    return {"server": server, **dict.fromkeys(names, 0), **fields}


def write_status(run: Path, content: dict[str, Any]) -> None:
    """Writes a status file."""
    (run / "live").mkdir(exist_ok=True)
    (run / "live" / f"{content['role']}.json").write_text(json.dumps(content))


def make_run(run: Path) -> Path:
    """A run that has just started."""
    (run / "logs").mkdir(parents=True)
    (run / "config.toml").write_text(CONFIG)
    for role in ("scheduler", "server-0", "worker-0", "worker-1"):
        (run / "logs" / f"{role}.log").write_text("started\n")
    return run


def event(kind: str, **fields: Any) -> str:
    """A line of the controller's log."""
    about = {"schema": 1, "event": kind, "controller": "c", "monotonic_ns": 1}
    return json.dumps({**about, **fields}) + "\n"


def plan(number: int, predicted_ns: int = 90 * MS_NS, **settings: int) -> str:
    """The event of a plan, which may have more ``settings``."""
    return event(
        "plan",
        number=number,
        at_iteration=10 * number,
        workers=["worker-0", "worker-1"],
        predicted_iteration_ns=predicted_ns,
        reason="profile 1 of worker-0",
        settings={"window_max_bytes": 1 << 20, **settings},
    )


def end_run(run: Path, status_text: str = "done", failed: str | None = None) -> None:
    """Writes the summary."""
    roles = [
        {"name": f"worker-{n}", "pid": n, "exit_status": 0, "cpu_s": 1.5, "stopped": False}
        for n in range(2)
    ]
    summary = {"schema": 1, "status": status_text, "failed": failed, "roles": roles, "wall_s": 3.0}
    (run / "summary.json").write_text(json.dumps(summary))
