"""The role of a process that mpirun or srun started with a number: as many processes as roles."""

from __future__ import annotations

import os
from dataclasses import replace

from byteprophet.errors import UserError
from byteprophet.launcher.job_file import JobFile
from byteprophet.launcher.spec import JobSpec
from byteprophet.remote.look import rank_in, world_in
from byteprophet.remote.placement import Unit

BY_RANK = "by-rank"


def units_of(spec: JobSpec) -> list[Unit]:
    """The roles in the order of their numbers."""
    scheduler = [] if spec.all_reduce else [Unit("scheduler", 0)]
    servers = [Unit("server", index) for index in range(spec.servers)]
    workers = [Unit("worker", index) for index in range(spec.workers)]
    controller = [Unit("controller", 0)] if spec.controller else []
    return [*scheduler, *servers, *workers, *controller]


def role_of_rank(job: JobFile) -> tuple[str, int, JobFile]:
    """Kind and index of this process' role; and the job, with a run directory for it alone.

    Raises ``UserError`` if nobody gave this process a number, or if there are more or fewer
    processes than roles.
    """
    environment = dict(os.environ)
    rank, world = rank_in(environment), world_in(environment)
    units = units_of(job.spec)
    if rank < 0:
        raise UserError(f"role {BY_RANK}: start it with mpirun or srun, which number processes")
    if world not in (-1, len(units)) or rank >= len(units):
        there = f"this is process number {rank}" if world < 0 else f"there are {world} processes"
        raise UserError(
            f"role {BY_RANK}: {there}, and the job has {len(units)} roles: start as many"
        )
    unit = units[rank]
    spec = replace(job.spec, run_directory=job.spec.run_directory / unit.name)
    return unit.kind, unit.index, replace(job, spec=spec)
