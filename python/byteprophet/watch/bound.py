"""The shortest iteration that any schedule can reach, for a run that may still be running.

Sizes and times come from the paced workload (``worker.toml``), or else from rank 0's profile, which
a job with servers has after some iterations. Links are as they were limited.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from byteprophet.bound import bound_ns
from byteprophet.paced.bound import why_no_bound
from byteprophet.paced.worker_config import read_worker_config
from byteprophet.profile.convert import to_workload
from byteprophet.profile.model import profile_path, read_profile
from byteprophet.workload.as_job import job_on_links

_WORKER = "worker.toml"


@dataclass(frozen=True)
class Bound:
    """``bound_ns`` None: not known, because of ``why``. Otherwise ``why`` says from what it is."""

    bound_ns: int | None
    why: str


def run_bound(run_directory: Path, config: Mapping[str, Any]) -> Bound:
    """The bound of the run with this ``config.toml``. Raises ``UserError`` for a damaged file."""
    path = run_directory / _WORKER
    worker = read_worker_config(path) if path.is_file() else None
    if none := why_no_bound(config, worker):
        return Bound(None, none)
    if worker:
        workload, why = worker.load_workload(), "the workload"
    elif profile_path(run_directory, 0).is_file():
        profile = read_profile(profile_path(run_directory, 0))
        workload, why = to_workload(profile, "job"), f"profile {profile.number}"
    else:
        yet = " yet" if config["servers"] else ""
        return Bound(None, f"there is no profile{yet}")
    shortest_ns = bound_ns(job_on_links(workload, config))
    if shortest_ns <= 0:
        return Bound(None, "no layer computes and no link is limited")
    return Bound(shortest_ns, why)


def changed(run_directory: Path) -> tuple[int, int]:
    """A pair that changes when the bound may have changed."""

    def stamp(path: Path) -> int:
        try:
            return path.stat().st_mtime_ns
        except OSError:
            return 0

    return stamp(run_directory / _WORKER), stamp(profile_path(run_directory, 0))
