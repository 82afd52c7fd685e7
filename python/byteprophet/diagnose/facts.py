"""What a run was: job, settings, links, machine, as far as its directory says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from byteprophet.bench.machine import describe_machine
from byteprophet.diagnose.recorded import Recorded
from byteprophet.errors import UserError
from byteprophet.network import payload_bps
from byteprophet.timeline.events import Origin
from byteprophet.workload.bound import iteration_bound_ns
from byteprophet.workload.worker_config import WorkerConfig, read_worker_config

_OF_CONFIG = (
    "scheduler",
    "local_ranks",
    "servers",
    "bandwidth_bps",
    "worker_bandwidth_bps",
    "steps",
    "partition_bytes",
    "settings",
)


def paced_config(run_directory: Path) -> WorkerConfig | None:
    """What the paced workers of a job were told; None: there were none, or it cannot be read."""
    try:
        return read_worker_config(run_directory / "worker.toml")
    except UserError:
        return None


def facts(run_directory: Path, run: Recorded, paced: WorkerConfig | None) -> dict[str, Any]:
    """Plain data; what is not known is None.

    ``machine`` is described only where the run was recorded on this one, since it was started:
    runs do not say what they ran on.
    """
    status = _json(run_directory / "summary.json").get("status")
    return {
        **{name: run.config.get(name) for name in _OF_CONFIG},
        "workers": len(run.workers),
        "workload": paced.workload if paced else None,
        "paced": paced is not None,
        "status": status if isinstance(status, str) else None,
        "machine": describe_machine() if set(run.machines) == {Origin("", 0).machine} else None,
        "machines": len(set(run.machines)),
    }


def paced_bound_ns(run: Recorded, paced: WorkerConfig | None) -> int | None:
    """The lower bound of a paced job's iteration on its configured links; None: not known."""
    config = run.config
    if paced is None or config.get("steps") or not config.get("servers"):
        return None
    try:
        workload = paced.load_workload()
    except UserError:
        return None
    own = [rate for rate in (config.get("worker_bandwidth_bps") or {}).values() if rate]
    rates_bps = [rate for rate in (config.get("bandwidth_bps"), *own) if rate]
    return iteration_bound_ns(
        workload,
        bandwidth_bps=payload_bps(min(rates_bps)) if rates_bps else None,
        workers=len(run.workers),
        servers=config["servers"],
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
