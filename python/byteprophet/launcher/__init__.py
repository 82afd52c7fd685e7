"""Starts the roles of a job on this machine, watches them, and ends them.

Other packages call ``run_job``. job.py describes how the parts work together.
"""

from __future__ import annotations

from byteprophet.launcher.job import check_job, run_job
from byteprophet.launcher.rundir import make_run_directory, read_worker_results
from byteprophet.launcher.spec import JobResult, JobSpec, Limits, RoleCommands, RoleResult

__all__ = [
    "JobResult",
    "JobSpec",
    "Limits",
    "RoleCommands",
    "RoleResult",
    "check_job",
    "make_run_directory",
    "read_worker_results",
    "run_job",
]
