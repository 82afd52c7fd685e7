"""Makes one row of the comparison from the measurements of the workers of a case's jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from byteprophet import bound, schedulers
from byteprophet.allreduce.bounds import eq6_max_speedup, eq7_dear_ns, eq8_allreduce_ns
from byteprophet.allreduce.timing import Link, Timing
from byteprophet.bench.case import Case, Plan, job_of
from byteprophet.bench.runtimes import runtime_of
from byteprophet.errors import JobFailed
from byteprophet.launcher import read_worker_results
from byteprophet.network import payload_bps
from byteprophet.paced.worker_config import WorkerResult
from byteprophet.tune.journal import NAME as JOURNAL
from byteprophet.tune.journal import read_journal
from byteprophet.tune.request import TRIALS
from byteprophet.workload import Workload


def read_results(run_directory: Path, workers: int) -> list[WorkerResult]:
    """The workers' results by rank; JobFailed if one wrote nothing or ranks disagree."""
    directory = run_directory / "results"
    try:
        results = [WorkerResult.of(table) for table in read_worker_results(run_directory)]
    except ValueError as error:
        raise JobFailed(f"{directory}: {error}") from None
    missing = set(range(workers)) - {result.rank for result in results}
    if missing:
        raise JobFailed(f"worker-{min(missing)} ended without a result: see {run_directory}/logs")
    if len({(len(r.iteration_ns), len(r.tuning_ns)) for r in results}) != 1:
        raise JobFailed(f"ranks measured unequal numbers of iterations: see {directory}")
    if len({result.parameters_sha256 for result in results}) != 1:
        raise JobFailed(f"ranks ended with different parameters: see {directory}")
    return results


def timing_fields(
    jobs: Sequence[Sequence[Sequence[int]]], batch_size: int, bound_ns: int | None
) -> dict[str, Any]:
    """The fields of a row with iteration times.

    ``jobs``: per job and worker, the worker's iterations in nanoseconds; the slowest worker counts.
    """
    slowest_ns = np.concatenate([np.max(workers, axis=0) for workers in jobs])
    median_ns = int(np.median(slowest_ns))
    return {
        "iteration_ns": {
            "median": median_ns,
            "p10": int(np.percentile(slowest_ns, 10)),
            "p90": int(np.percentile(slowest_ns, 90)),
        },
        "samples_per_s": round(batch_size * 1e9 / median_ns, 3),
        "bound_ns": bound_ns,
        "bound_ratio": round(median_ns / bound_ns, 4) if bound_ns else None,
    }


def bound_ns(workload: Workload, case: Case) -> int:
    """The shortest possible iteration of ``case``."""
    return bound.bound_ns(job_of(case, workload))


def paper_fields(workload: Workload, case: Case) -> dict[str, float]:
    """The shortest iterations according to the DeAR paper, and the largest speedup for ``dear``.

    Iterations of DeAR (Eq. 7), and of all-reduces that the forward pass waits for (Eq. 8). The
    speedup compares all workers with one that does not communicate (Eq. 6). Only for a runtime
    without servers on a limited link that does not change, and not if averages are delayed or
    gradients cast.
    """
    if case.staleness or case.reduce_dtype:
        return {}
    rates_bps = [payload_bps(rate_bps) for rate_bps in case.rates_bps]
    known_bps = [rate_bps for rate_bps in rates_bps if rate_bps is not None]
    if not runtime_of(case.runtime).collective or known_bps != rates_bps or case.steps:
        return {}
    timing = Timing.of_workload(workload, Link.of_ranks(known_bps, owners=case.weights))
    fields: dict[str, float] = {"eq7_ns": eq7_dear_ns(timing), "eq8_ns": eq8_allreduce_ns(timing)}
    if case.runtime == "dear":
        fields["eq6_max_speedup"] = round(eq6_max_speedup(timing), 4)
    return fields


def tuned_fields(
    case: Case, batch_size: int, jobs: Sequence[tuple[Path, Sequence[WorkerResult]]]
) -> dict[str, Any] | None:
    """What tuning found and what it cost; None without tuning. ``jobs`` as in ``summarize``."""
    if case.tuning is None:
        return None
    chosen, costs_ns = [], []
    for run, _ in jobs:
        journal = read_journal(run)
        chosen += [entry["chosen"] for entry in journal if "chosen" in entry]
        costs_ns += [_cost_ns(run, entry) for entry in journal]
    if len(chosen) != len(jobs):
        raise JobFailed(f"{case.scheduler}: tuning did not end: see {jobs[-1][0]}/{JOURNAL}")
    slowest_ns = [
        np.max([(*r.tuning_ns, *r.iteration_ns) for r in results], axis=0) for _, results in jobs
    ]
    mean_ns = float(np.mean(np.concatenate(slowest_ns)))
    return {
        "iterations": case.tune_iterations,
        "trials": TRIALS,
        "settings": chosen,
        "iteration_ns": int(mean_ns),
        "samples_per_s": round(batch_size * 1e9 / mean_ns, 3),
        "change_ns": int(np.median(costs_ns)),
    }


def _cost_ns(run: Path, entry: Mapping[str, Any]) -> int:
    """The cost for rank 0 of an entry in a tuner's journal; JobFailed if the entry has none."""
    parts_ns = [entry.get(name) for name in ("decide_ns", "wait_ns", "apply_ns")]
    if not all(type(part_ns) is int and 0 <= part_ns < 1 << 60 for part_ns in parts_ns):
        raise JobFailed(f"{run}/{JOURNAL}: an entry has no cost of its change")
    return sum(part_ns or 0 for part_ns in parts_ns)


def wire_fields(workers: Sequence[WorkerResult]) -> dict[str, int]:
    """The most bytes that any worker sent per iteration, and the most that any received."""
    per_iteration = np.array([np.divide(w.wire_bytes, len(w.iteration_ns)) for w in workers])
    sent, received = per_iteration.max(axis=0)
    return {"sent_bytes": round(sent), "received_bytes": round(received)}


def _by_index(rates_bps: Mapping[int, int]) -> dict[str, int]:
    return {str(index): rate_bps for index, rate_bps in sorted(rates_bps.items())}


def summarize(
    case: Case, plan: Plan, workload: Workload, jobs: Sequence[tuple[Path, Sequence[WorkerResult]]]
) -> dict[str, Any]:
    """One row. ``jobs``: per round, the run directory and its workers' results."""
    hashes = {result.parameters_sha256 for _, results in jobs for result in results}
    if len(hashes) != 1:
        raise JobFailed(f"{case.name}: rounds ended with different parameters")
    times_ns = [[result.iteration_ns for result in results] for _, results in jobs]
    workers = [result for _, results in jobs for result in results]
    collective, partition_bytes = case.collective_settings, 0
    settings: Mapping[str, int]
    if collective is None:
        settings, partition_bytes = schedulers.resolve(
            case.scheduler, case.settings, case.partition_bytes
        )
    else:
        settings = collective
    return {
        "workload": workload.name,
        "runtime": case.runtime,
        "scheduler": case.scheduler if collective is None else None,
        "bandwidth_bps": case.bandwidth_bps,
        "steps": [str(step) for step in case.steps],
        "worker_bandwidth_bps": _by_index(case.worker_bandwidth_bps),
        "server_bandwidth_bps": _by_index(case.server_bandwidth_bps),
        "workers": case.workers,
        "servers": case.servers,
        "owners": list(case.weights) or None,
        "strategy": None if case.strategy is None else str(case.strategy),
        "partition_bytes": max(worker.partition_bytes for worker in workers) or partition_bytes,
        "settings": {
            **settings,
            "forward_ns": workload.forward_ns,
            "backward_ns": workload.backward_ns,
            "warmup_iterations": plan.warmup_iterations,
            "iterations": sum(len(job[0]) for job in times_ns),
            "rounds": plan.rounds,
            "updates": plan.updates + case.tune_iterations,
        },
        "tuned": tuned_fields(case, workload.batch_size, jobs),
        "paced": True,
        # No bound holds for a link that changes.
        **timing_fields(
            times_ns, workload.batch_size, None if case.steps else bound_ns(workload, case)
        ),
        **paper_fields(workload, case),
        "worker_cpu_fraction": round(float(np.median([w.cpu_fraction for w in workers])), 4),
        "idle_cpu_fraction": round(float(np.median([w.idle_cpu_fraction for w in workers])), 4),
        **wire_fields(workers),
        "real_time": all(worker.real_time for worker in workers),
        "scheduled_partitions": min(worker.scheduled_partitions for worker in workers),
        "parameters_sha256": hashes.pop(),
        "run": str(jobs[-1][0]),
        "runs": [str(run) for run, _ in jobs],
    }
