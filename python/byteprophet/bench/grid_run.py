"""Runs a phase of a grid, and continues where an earlier run stopped.

A job is skipped if the records (``grid_store.py``) have a successful one with the same fingerprint,
code version and machine. Outdated records stay in the file, and their number is printed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import numpy as np

from byteprophet import schedulers
from byteprophet.bench.case import Plan
from byteprophet.bench.cpu import CpuWatch
from byteprophet.bench.execute import Measured, check_case, run_case
from byteprophet.bench.grid import Grid
from byteprophet.bench.grid_jobs import (
    Job,
    PreparedCell,
    code_version,
    fingerprint,
    plan_of,
    prepare_cell,
)
from byteprophet.bench.grid_phases import phase_jobs
from byteprophet.bench.grid_store import Record, Store, key_of
from byteprophet.bench.learned import learn
from byteprophet.bench.result import bound_ns, paper_fields, wire_fields
from byteprophet.errors import JobFailed, UserError
from byteprophet.machine import describe_machine
from byteprophet.network import why_not_permitted

START_S = 5.0
"""Time of a job before its first iteration and after its last one, together."""

_WITHOUT_OVERLAP = ("stock", "fifo", "bytescheduler-reduce")

Progress = Callable[[str], None]


@dataclass(frozen=True)
class _Task:
    """A job with everything needed to run it."""

    job: Job
    prepared: PreparedCell
    plan: Plan
    fingerprint: str

    def estimate_s(self) -> float:
        """Estimated duration on a quiet machine."""
        case, workload = self.plan.cases[0], self.prepared.workload
        iteration_ns = 1.12 * bound_ns(workload, case)
        if case.name in _WITHOUT_OVERLAP and case.slowest_bps is not None:
            compute_ns = workload.forward_ns + workload.backward_ns
            iteration_ns = compute_ns + workload.size_bytes * 8e9 / case.slowest_bps
        return START_S + (self.plan.updates + case.tune_iterations) * iteration_ns / 1e9


def run_phase(
    grid: Grid,
    phase: str,
    names: Sequence[str],
    rounds: int,
    directory: Path,
    namespaces: bool,
    progress: Progress,
) -> None:
    """Run the missing jobs of ``phase`` and append them to the records in ``directory``.

    UserError before anything starts if a job cannot run here. A job that fails is recorded and the
    others continue; at the end JobFailed reports the failures.
    """
    cells = prepare(grid, directory)
    jobs = phase_jobs(phase, cells, names, rounds)
    run_jobs(grid, cells, jobs, directory, namespaces, progress)


def namespaces_for(grid: Grid) -> bool:
    """Whether roles get their own emulated hosts; UserError if these are needed but impossible."""
    reason = why_not_permitted()
    limited = any(
        cell.worker_bandwidth_bps or cell.bandwidth_bps(cell.load_workload()) is not None
        for cell in grid.cells
    )
    if reason is not None and limited:
        raise UserError(f"grid {grid.name}: limited links need network namespaces: {reason}")
    return reason is None


def prepare(grid: Grid, directory: Path) -> list[PreparedCell]:
    """Prepare the cells of ``grid``, and write their workloads to files in ``directory``."""
    return [prepare_cell(cell, directory / "workloads") for cell in grid.cells]


def run_jobs(
    grid: Grid,
    cells: Sequence[PreparedCell],
    jobs: Sequence[Job],
    directory: Path,
    namespaces: bool,
    progress: Progress,
) -> None:
    """Run those of ``jobs``, all of one phase, that are missing. See ``run_phase``."""
    by_name = {prepared.cell.name: prepared for prepared in cells}
    tasks = [_task(grid, job, by_name[job.cell.name]) for job in jobs]
    for task in tasks:
        check_case(task.plan.cases[0], task.plan, directory / "runs", namespaces)
        if not bound_ns(task.prepared.workload, task.plan.cases[0]):
            raise UserError(
                f"grid {grid.name}: cell {task.job.cell.name!r}: nothing takes time in it: no "
                "layer computes, and no link has a rate"
            )
    store = Store(directory)
    try:
        missing = _missing(tasks, store.records, progress)
        left_s = sum(task.estimate_s() for task in missing)
        progress(
            f"grid {grid.name}, phase {jobs[0].phase}: {len(missing)} of {len(tasks)} jobs to run, "
            f"about {_minutes(left_s)}"
        )
        failures = _run(missing, store, directory / "runs", namespaces, progress)
    finally:
        store.close()
    if failures:
        raise JobFailed(
            f"{len(failures)} of {len(missing)} jobs failed (the same command runs them again); "
            f"the last: {failures[-1]}"
        )


def _task(grid: Grid, job: Job, prepared: PreparedCell) -> _Task:
    plan = plan_of(grid, job.phase, prepared.case(job.variant))
    return _Task(job, prepared, plan, fingerprint(prepared, job.variant, plan))


def _missing(tasks: Sequence[_Task], records: Sequence[Record], progress: Progress) -> list[_Task]:
    """Tasks without a valid record; reports how many records are outdated, and why."""
    missing, other_settings, other_code, other_machine, failed = [], 0, 0, 0, 0
    machine = describe_machine()
    for task in tasks:
        same_key = [r for r in records if key_of(r) == task.job.key]
        same_job = [r for r in same_key if r["fingerprint"] == task.fingerprint]
        same_code = [r for r in same_job if r["code"] == code_version()]
        same_machine = [r for r in same_code if r.get("machine") == machine]
        if any("failed" not in record for record in same_machine):
            continue
        missing.append(task)
        failed += bool(same_machine)
        other_machine += bool(same_code) and not same_machine
        other_code += bool(same_job) and not same_code
        other_settings += bool(same_key) and not same_job
    if other_settings:
        progress(f"settings have changed since: {other_settings} jobs are run again")
    if other_code:
        progress(
            f"the code has changed since (now {code_version()}): {other_code} jobs are run again"
        )
    if other_machine:
        progress(
            f"the machine, kernel or torch has changed since: {other_machine} jobs are run again"
        )
    if failed:
        progress(f"{failed} jobs that failed are run again")
    return missing


def _run(
    tasks: Sequence[_Task], store: Store, runs: Path, namespaces: bool, progress: Progress
) -> list[str]:
    """Run the tasks; return one line for each failure."""
    failures: list[str] = []
    estimated_s = taken_s = 0.0
    left_s = sum(task.estimate_s() for task in tasks)
    for number, task in enumerate(tasks, 1):
        # Assume that the machine stays as fast as it has been so far.
        pace = (taken_s + 60) / (estimated_s + 60)
        progress(
            f"{number} of {len(tasks)}, {_minutes(left_s * pace)} left: round {task.job.round}, "
            f"{task.job.cell.name}, {task.job.variant.label}"
        )
        started_s = time.monotonic()
        record: Record = {
            "phase": task.job.phase,
            "cell": task.job.cell.name,
            "variant": task.job.variant.label,
            "round": task.job.round,
            "runtime": task.job.variant.runtime,
            "scheduler": task.job.variant.told_scheduler,
            "settings": dict(task.job.variant.settings),
            "tuner": task.job.variant.tuner,
            "environment": dict(task.job.variant.environment),
            "fingerprint": task.fingerprint,
            "code": code_version(),
            "machine": describe_machine(),
            "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        }
        try:
            case = task.plan.cases[0]
            if case.name in schedulers.PLANNED:
                learned = learn(task.prepared, runs.parent / "learned", namespaces)
                case = learned.given_to(case)
            with CpuWatch() as watch:
                measured = run_case(case, task.plan, task.prepared.workload, runs, namespaces)
            record |= _measures(task, measured, watch)
        except JobFailed as error:
            failures.append(f"{task.job.cell.name}, {task.job.variant.label}: {error}")
            record["failed"] = str(error)
            progress(f"failed: {error}")
        store.add(record)
        taken_s += time.monotonic() - started_s
        estimated_s += task.estimate_s()
        left_s -= task.estimate_s()
    return failures


def _measures(task: _Task, measured: Measured, watch: CpuWatch) -> Record:
    workers = measured.workers
    begin_ns = max(worker.first_monotonic_ns - sum(worker.tuning_ns) for worker in workers)
    share = watch.share(begin_ns, min(worker.last_monotonic_ns for worker in workers))
    slowest_ns = np.max([(*worker.tuning_ns, *worker.iteration_ns) for worker in workers], axis=0)
    # Servers are equally busy in every update, and their start costs little.
    window_s = sum(int(value) for value in slowest_ns) / 1e9
    servers_cpu_s = sum(role.cpu_s for role in measured.job.roles if "worker" not in role.name)
    updates = task.plan.updates + task.plan.cases[0].tune_iterations
    servers = servers_cpu_s * len(slowest_ns) / updates / window_s
    own = (sum(worker.cpu_fraction for worker in workers) + servers) / (os.cpu_count() or 1)
    return {
        "iteration_ns": [int(value) for value in slowest_ns],
        "bound_ns": bound_ns(task.prepared.workload, task.plan.cases[0]),
        **paper_fields(task.prepared.workload, task.plan.cases[0]),
        "batch_size": task.prepared.workload.batch_size,
        "machine_cpu_fraction": round(share.mean, 4),
        "saturated_fraction": round(share.saturated, 4),
        "job_cpu_fraction": round(own, 4),
        "worker_cpu_fraction": [round(worker.cpu_fraction, 4) for worker in workers],
        **wire_fields(workers),
        "roles_cpu_s": {role.name: role.cpu_s for role in measured.job.roles},
        "wall_s": measured.job.wall_s,
        "parameters_sha256": workers[0].parameters_sha256,
        "run": measured.directory.name,
    }


def _minutes(seconds: float) -> str:
    return f"{max(1, round(seconds / 60))} min"
