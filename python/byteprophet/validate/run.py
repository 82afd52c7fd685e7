"""Runs and records a validation's jobs in rounds, and keeps their measurements.

A directory has ``jobs.jsonl`` (``bench.grid_store``) and the runs; an interrupted validation
continues there. Predictions are made from the record of the very first job.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from byteprophet.bench import Plan, describe_machine
from byteprophet.bench.case import warmup_of
from byteprophet.bench.cpu import CpuWatch
from byteprophet.bench.execute import Progress, check_case, run_case
from byteprophet.bench.grid_jobs import code_version
from byteprophet.bench.grid_store import Record, Store, key_of
from byteprophet.digests import digest_of
from byteprophet.errors import JobFailed
from byteprophet.job.times import iteration_times_ns
from byteprophet.validate.cases import ValidationCase
from byteprophet.whole_files import make_directory
from byteprophet.workload import Workload, to_toml

_PHASE = "validate"
_MEASURED = 2
"""How iterations are measured. In jobs of 1, the slowest worker's own times were."""


def run_missing(
    cases: Sequence[ValidationCase],
    iterations: int,
    rounds: int,
    directory: Path,
    namespaces: bool,
    progress: Progress,
) -> list[Record]:
    """Runs what ``directory`` lacks; returns the records of all that were asked for.

    ``iterations``: measured ones of each job. UserError before anything starts where a case cannot
    be run here, JobFailed at once where a job fails: the same command goes on there.
    """
    plans = [
        Plan(
            (what.case,),
            iterations,
            rounds=1,
            warmup_iterations=warmup_of([what.case]),
            record=True,
            idle_s=0.0,
        )
        for what in cases
    ]
    workloads = [
        check_case(what.case, plan, directory, namespaces)
        for what, plan in zip(cases, plans, strict=True)
    ]
    jobs = [
        _Job(what, plan, workload, number)
        for number in range(1, rounds + 1)
        for what, plan, workload in zip(cases, plans, workloads, strict=True)
    ]
    store = Store(directory)
    try:
        for number, job in enumerate(jobs, 1):
            if job.record_in(store.records) is None:
                progress(f"{number} of {len(jobs)}: round {job.round}, {job.what.name}")
                store.add(job.run(directory / "runs", namespaces))
        found = [job.record_in(store.records) for job in jobs]
    finally:
        store.close()
    return [record for record in found if record is not None]


class _Job:
    """One case in one round."""

    def __init__(self, what: ValidationCase, plan: Plan, workload: Workload, number: int) -> None:
        self.what = what
        self.round = number
        self._plan = plan
        self._workload = workload
        told = json.dumps(
            [asdict(what.case), plan.iterations_per_job, to_toml(workload), _MEASURED],
            sort_keys=True,
            default=str,
        )
        self.facts: Record = {
            "phase": _PHASE,
            "cell": what.case.workload,
            "variant": what.name,
            "round": number,
            "fingerprint": digest_of(told),
            "code": code_version(),
            "machine": describe_machine(),
        }

    def record_in(self, records: Sequence[Record]) -> Record | None:
        """The latest of this job with these settings; of other code, too: that is in the record."""
        fitting = [
            record
            for record in records
            if key_of(record) == key_of(self.facts)
            and record["fingerprint"] == self.facts["fingerprint"]
        ]
        return fitting[-1] if fitting else None

    def run(self, runs: Path, namespaces: bool) -> Record:
        """The job's record."""
        make_directory(runs)
        with CpuWatch() as watch:
            try:
                job = run_case(self.what.case, self._plan, self._workload, runs, namespaces)
            except JobFailed as error:
                raise JobFailed(f"{self.what.name}: {error}") from None
        begin_ns = max(worker.first_monotonic_ns for worker in job.workers)
        share = watch.share(begin_ns, min(worker.last_monotonic_ns for worker in job.workers))
        measured: dict[str, Any] = {
            "iteration_ns": iterations_ns(
                [worker.first_monotonic_ns for worker in job.workers],
                [worker.iteration_ns for worker in job.workers],
            ),
            "machine_cpu_fraction": round(share.mean, 4),
            "saturated_fraction": round(share.saturated, 4),
            "run": job.directory.name,
        }
        return self.facts | measured


def iterations_ns(first_ns: Sequence[int], own_ns: Sequence[Sequence[int]]) -> list[int]:
    """How long each iteration of a job took, in the same sense as in its record.

    ``first_ns``: when each worker began its first one, on the clock of the machine that all of them
    are on. ``own_ns``: each worker's own times, from begin to begin, shape (workers, iterations).
    """
    ends_ns = np.array(first_ns)[:, None] + np.cumsum(own_ns, axis=1)
    times_ns = iteration_times_ns(ends_ns - np.array(own_ns), ends_ns)
    return [int(time_ns) for time_ns in times_ns]
