"""Facts about a run, as far as its directory has them: job, settings, links, machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from byteprophet.bound import bound_ns
from byteprophet.diagnose.recorded import Recorded
from byteprophet.errors import UserError
from byteprophet.input_files import read_json
from byteprophet.job import Cluster, Host, Job, Policy, Strategy
from byteprophet.machine import describe_machine
from byteprophet.network import payload_bps
from byteprophet.paced.worker_config import WorkerConfig, read_worker_config
from byteprophet.timeline.events import Origin
from byteprophet.workload.as_job import model_of, times_of

LINKS = ("bandwidth_bps", "worker_bandwidth_bps", "server_bandwidth_bps", "steps")
"""The facts that describe links."""
_OF_CONFIG = (
    "scheduler",
    "local_ranks",
    "servers",
    *LINKS,
    "partition_bytes",
    "settings",
)


def paced_config(run_directory: Path) -> WorkerConfig | None:
    """The configuration of a job's paced workers; None if it had none, or it cannot be read."""
    try:
        return read_worker_config(run_directory / "worker.toml")
    except UserError:
        return None


def facts(run_directory: Path, run: Recorded, paced: WorkerConfig | None) -> dict[str, Any]:
    """The facts as plain data; None stands for what is not known.

    ``machine`` is described only if the run was recorded on this machine since its last boot,
    because runs do not record their machine.
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
    slowest_bps = (payload_bps(min(rates_bps)) or 0) if rates_bps else 0
    workers = len(run.workers)
    return bound_ns(
        Job(
            model_of(workload),
            times_of(workload, workers),
            Cluster((Host(slowest_bps, slowest_bps),) * workers, (Host(),) * config["servers"]),
            Strategy(),
            Policy(str(config.get("scheduler"))),
        )
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
    except UserError:
        return {}
    return content if isinstance(content, dict) else {}
