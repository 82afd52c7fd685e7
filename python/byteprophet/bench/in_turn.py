"""Runs cases that need the same roles and settings in one job, one after the other.

Starting and ending a job takes several times as long as a few iterations. Cases under strategy
files differ in what workers are told, and workers can be told of another strategy between two steps
(``paced/in_turn.py``). What is fixed for a job is whether it has servers, how many, and their
policy and its settings.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from byteprophet.bench.case import Case, Plan
from byteprophet.bench.execute import CONFIG, config_of, spec_of
from byteprophet.bench.result import read_results
from byteprophet.bench.runtimes import runtime_of
from byteprophet.errors import UserError
from byteprophet.job.strategy_file import Used, read_strategy_file, write_strategy
from byteprophet.job.times import Int64Array
from byteprophet.launcher import make_run_directory, run_job
from byteprophet.paced.worker_config import numbered
from byteprophet.runtime_settings import STRATEGY, STRATEGY_MODEL
from byteprophet.whole_files import make_directory, write_whole
from byteprophet.workload import Workload

_MODULE = "byteprophet.paced.in_turn"


def job_key(case: Case) -> tuple[object, ...]:
    """Cases of one workload on the same links can run in one job if these are equal."""
    if runtime_of(case.runtime).collective:
        # Without a strategy, the job's configuration names the runtime.
        return case.workers, case.runtime if case.strategy is None else ""
    settings = tuple(sorted(case.settings.items()))
    fixed = case.workers, case.servers, case.scheduler, settings, case.partition_bytes
    return (*fixed, bool(case.routes))


def run_in_turn(
    cases: Sequence[Case], plan: Plan, workload: Workload, runs: Path, label: str
) -> list[Int64Array]:
    """Run ``cases`` in one job, each for as many iterations as ``plan`` says.

    Returns the slowest worker's measured iterations of each case, in ns. Roles have emulated hosts.
    Raises ``JobFailed`` if the job fails, and ``UserError`` if the cases need different jobs.
    """
    if len({job_key(case) for case in cases}) != 1:
        raise UserError(f"{label}: these strategies need different jobs")
    directory = make_run_directory(runs, label)
    paths = tuple(_written(case, number, directory) for number, case in enumerate(cases))
    config = replace(config_of(cases[0], plan), strategies=paths)
    write_whole(directory / CONFIG, config.to_toml())
    spec = spec_of(cases[0], plan, workload, directory, namespaces=True)
    spec = replace(
        spec,
        command=(sys.executable, "-m", _MODULE, str((directory / CONFIG).absolute())),
        environment={**spec.environment, STRATEGY: "", STRATEGY_MODEL: ""},
        ranks=any(case.routes for case in cases),
        timeout_s=len(cases) * spec.timeout_s,
    )
    run_job(spec).check()
    workers = read_results(directory, spec.workers)
    times_ns = np.max([worker.iteration_ns for worker in workers], axis=0)
    return list(times_ns.reshape(len(cases), -1))


def _written(case: Case, number: int, directory: Path) -> str:
    """The strategy of ``case`` for tensors with a number before their names; "": it has none."""
    used = None if case.strategy is None else read_strategy_file(case.strategy)
    if used is None or (used.policy is not None and not used.strategy.is_told_to_workers):
        return ""
    path = directory / "given" / f"{number}.json"
    make_directory(path.parent)
    write_strategy(path, _numbered(used, number))
    return str(path.absolute())


def _numbered(used: Used, number: int) -> Used:
    strategy = used.strategy
    parameters = (replace(p, name=numbered(p.name, number)) for p in used.model.parameters)
    buckets = (
        replace(each, parameters=tuple(numbered(name, number) for name in each.parameters))
        for each in strategy.buckets
    )
    keys = (replace(each, tensor=numbered(each.tensor, number)) for each in strategy.keys)
    routes = (replace(each, tensor=numbered(each.tensor, number)) for each in strategy.routes)
    return replace(
        used,
        model=replace(used.model, parameters=tuple(parameters)),
        strategy=replace(strategy, buckets=tuple(buckets), keys=tuple(keys), routes=tuple(routes)),
    )
