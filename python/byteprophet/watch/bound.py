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
from byteprophet.paced.worker_config import read_worker_config
from byteprophet.profile.convert import to_workload
from byteprophet.profile.model import profile_path, read_profile
from byteprophet.runtime_settings import STRATEGY
from byteprophet.workload.as_job import job_on_links

_WORKER = "worker.toml"


@dataclass(frozen=True)
class Bound:
    """``bound_ns`` None: not known, because of ``why``. Otherwise ``why`` says from what it is."""

    bound_ns: int | None
    why: str


def run_bound(run_directory: Path, config: Mapping[str, Any]) -> Bound:
    """The bound of the run with this ``config.toml``. Raises ``UserError`` for a damaged file."""
    if config["steps"]:
        return Bound(None, "links change during the job")
    if config["environment"].get(STRATEGY):
        return Bound(None, "a strategy changes the job")
    paced = (run_directory / _WORKER).is_file()
    if not paced and not profile_path(run_directory, 0).is_file():
        return Bound(
            None, "there is no profile yet" if config["servers"] else "there is no profile"
        )
    if paced:
        worker = read_worker_config(run_directory / _WORKER)
        if worker.next_batch_at is not None:
            return Bound(None, "the batch changes during the job")
        workload, why = worker.load_workload(), "the workload"
    else:
        profile = read_profile(profile_path(run_directory, 0))
        workload, why = to_workload(profile, "job"), f"profile {profile.number}"
    return Bound(bound_ns(job_on_links(workload, config)), why)


def changed(run_directory: Path) -> tuple[int, int]:
    """A pair that changes when the bound may have changed."""

    def stamp(path: Path) -> int:
        try:
            return path.stat().st_mtime_ns
        except OSError:
            return 0

    return stamp(run_directory / _WORKER), stamp(profile_path(run_directory, 0))
