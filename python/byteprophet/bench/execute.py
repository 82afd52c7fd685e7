"""Runs the jobs of a bench: in each round one job of every case, in order."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from byteprophet.bench.case import Case, Plan
from byteprophet.bench.result import read_results, summarize
from byteprophet.bench.runtimes import runtime_of
from byteprophet.errors import UserError
from byteprophet.job.owners import text_of
from byteprophet.job.strategy_file import read_strategy_file
from byteprophet.launcher import JobResult, JobSpec, check_job, make_run_directory, run_job
from byteprophet.launcher.given_strategy import with_strategy
from byteprophet.network import format_rate
from byteprophet.observe import recording
from byteprophet.paced.worker_config import WorkerConfig, WorkerResult
from byteprophet.runtime_settings import OWNERS, STRATEGY, STRATEGY_MODEL
from byteprophet.schedulers import PLANNED
from byteprophet.tune.request import VARIABLE
from byteprophet.whole_files import write_whole
from byteprophet.workload import Workload

CONFIG = "worker.toml"
_START_S = 120.0
_SLOWDOWN = 30
"""A job counts as stuck when it takes this many times its compute and transfer time."""

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Measured:
    """A finished job: its run directory, how its roles ended, and its workers' results by rank."""

    directory: Path
    job: JobResult
    workers: list[WorkerResult]


def run_bench(plan: Plan, runs: Path, namespaces: bool, progress: Progress) -> list[dict[str, Any]]:
    """Run ``plan`` and return one row per case, in order (schema: docs/formats.md).

    ``runs``: where run directories are made. ``namespaces``: each role gets its own emulated host;
    limited bandwidths need this. UserError before anything starts if a case cannot run here.
    """
    workloads = [check_case(case, plan, runs, namespaces) for case in plan.cases]
    jobs: list[list[tuple[Path, list[WorkerResult]]]] = [[] for _ in plan.cases]
    for round_number in range(1, plan.rounds + 1):
        for case, workload, done in zip(plan.cases, workloads, jobs, strict=True):
            progress(f"round {round_number} of {plan.rounds}: {_label(case, workload)}")
            measured = run_case(case, plan, workload, runs, namespaces)
            done.append((measured.directory, measured.workers))
    return [
        summarize(case, plan, workload, done)
        for case, workload, done in zip(plan.cases, workloads, jobs, strict=True)
    ]


def check_case(case: Case, plan: Plan, runs: Path, namespaces: bool) -> Workload:
    """Load the workload of ``case``; UserError if the case cannot run here. Starts no process."""
    workload = config_of(case, plan).load_workload()
    if case.servers < 1 and not runtime_of(case.runtime).collective:
        raise UserError(
            f"--servers {case.servers}: BytePS needs at least one; runtimes without servers are "
            "chosen with --runtime, e.g. --runtime ddp"
        )
    check_job(spec_of(case, plan, workload, runs, namespaces))
    return workload


def run_case(case: Case, plan: Plan, workload: Workload, runs: Path, namespaces: bool) -> Measured:
    """Run one job of ``case``, as long as those of ``plan``; JobFailed if it fails."""
    directory = make_run_directory(runs, f"bench-{_label(case, workload)}")
    write_whole(directory / CONFIG, config_of(case, plan).to_toml())
    job = run_job(spec_of(case, plan, workload, directory, namespaces))
    job.check()
    return Measured(directory, job, read_results(directory, case.workers))


def _label(case: Case, workload: Workload) -> str:
    return f"{workload.name}-{case.name}-{format_rate(case.bandwidth_bps)}"


def config_of(case: Case, plan: Plan) -> WorkerConfig:
    """The configuration of the workers of ``case``."""
    settings = case.collective_settings
    return WorkerConfig(
        workload=case.workload,
        scheduler=case.scheduler if settings is None else None,
        runtime=None if settings is None else case.runtime,
        settings=settings or {},
        warmup_iterations=plan.warmup_iterations,
        iterations=plan.iterations_per_job,
        compute_ns=case.compute_ns,
        idle_s=plan.idle_s,
        tune_iterations=case.tune_iterations,
    )


def spec_of(
    case: Case, plan: Plan, workload: Workload, directory: Path, namespaces: bool
) -> JobSpec:
    """The job of ``case`` in the run directory ``directory``, whose workers read ``CONFIG``."""
    steps_bps = (step.rate_bps for step in case.steps)
    rates_bps = [case.slowest_bps, *case.server_bandwidth_bps.values(), *steps_bps]
    slowest_bps = min((rate for rate in rates_bps if rate is not None), default=None)
    wire_s = 0.0 if slowest_bps is None else workload.size_bytes * 16 / slowest_bps
    runtime = runtime_of(case.runtime)
    iteration_s = (workload.forward_ns + workload.backward_ns) / 1e9 + wire_s
    spec = JobSpec(
        command=(
            sys.executable,
            "-m",
            runtime.worker,
            str((directory / CONFIG).absolute()),
        ),
        run_directory=directory,
        workers=case.workers,
        servers=case.servers,
        scheduler=case.scheduler,
        settings={} if runtime.collective else case.settings,
        partition_bytes=case.partition_bytes,
        bandwidth_bps=case.bandwidth_bps,
        worker_bandwidth_bps=case.worker_bandwidth_bps,
        server_bandwidth_bps=case.server_bandwidth_bps,
        steps=case.steps,
        environment=_environment(case, plan),
        namespaces=namespaces,
        controller=plan.controller and case.scheduler in PLANNED and not runtime.collective,
        forks=True,
        timeout_s=_START_S + _SLOWDOWN * (plan.updates + case.tune_iterations) * iteration_s,
    )
    if case.strategy is None:
        return spec
    used = read_strategy_file(case.strategy)
    used = replace(used, servers=used.servers and case.servers)
    controller = plan.controller and case.scheduler in PLANNED
    # Paced workers choose their module by the runtime, so they are ranks only for two transports.
    ranks = bool(case.routes)
    return replace(with_strategy(spec, used, case.strategy), controller=controller, ranks=ranks)


def _environment(case: Case, plan: Plan) -> dict[str, str]:
    # Always set all, because the caller's values do not suit all schedulers.
    return {
        STRATEGY: "",
        STRATEGY_MODEL: "",
        **case.environment,
        OWNERS: text_of(case.weights),
        VARIABLE: "" if case.tuning is None else str(case.tuning),
        recording.VARIABLE: str(int(plan.record)),
    }
