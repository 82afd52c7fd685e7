"""Facts about a run, as far as its directory has them: job, settings, links, machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from byteprophet.bound import bound_ns
from byteprophet.diagnose.recorded import Recorded
from byteprophet.errors import UserError
from byteprophet.input_files import read_json
from byteprophet.machine import describe_machine
from byteprophet.paced.bound import why_no_bound
from byteprophet.paced.worker_config import WorkerConfig, read_worker_config
from byteprophet.timeline.events import Origin
from byteprophet.workload.as_job import job_on_links

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
    if paced is None or why_no_bound(run.config, paced):
        return None
    try:
        return bound_ns(job_on_links(paced.load_workload(), run.config))
    except UserError:
        return None


def _json(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
    except UserError:
        return {}
    return content if isinstance(content, dict) else {}
