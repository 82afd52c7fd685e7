"""The digits training as a job under one scheduler, and the row of a comparison that it gives.

Rows have the fields that ``byteprophet bench`` gives (``"paced": false``, no CPU fractions), and
``final_loss`` and ``test_accuracy``, both of rank 0. The bound is computed from what the workers
measured of their own compute before any communication (digits/calibrate.py), by the fastest of
them, so that no worker's bad moment turns it into more than a bound.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from byteprophet import _core, schedulers
from byteprophet.bench.result import timing_fields
from byteprophet.errors import JobFailed, UserError
from byteprophet.launcher import JobSpec, make_run_directory, read_worker_results, run_job
from byteprophet.network import format_rate, payload_bps
from byteprophet.observe import recording

WORKERS, SERVERS = 2, 1
WORKLOAD = "digits"
WARMUP_ITERATIONS = 6
_TRAIN = Path(__file__).parent / "digits" / "train.py"
_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Finished:
    """A job that is done: its run directory, and what its workers wrote, by rank."""

    run_directory: Path
    workers: Sequence[Mapping[str, Any]]


def run_digits(
    scheduler: str,
    bandwidth_bps: int | None,
    namespaces: bool,
    iterations: int | None,
    runs: Path,
    record: bool = False,
) -> Finished:
    """Train under ``scheduler``, in a new directory below ``runs``; JobFailed if that failed.

    ``iterations`` counts all updates, None leaves it to the script; the first WARMUP_ITERATIONS are
    not timed.
    """
    if iterations is not None and iterations <= WARMUP_ITERATIONS:
        raise UserError(f"iterations {iterations}: must be more than {WARMUP_ITERATIONS}")
    label = f"{WORKLOAD}-{scheduler}-{format_rate(bandwidth_bps)}"
    directory = make_run_directory(runs, label)
    lengths = ["--warmup", str(WARMUP_ITERATIONS)]
    if iterations is not None:
        lengths += ["--iterations", str(iterations)]
    spec = JobSpec(
        command=(sys.executable, str(_TRAIN), *lengths),
        run_directory=directory,
        workers=WORKERS,
        servers=SERVERS,
        scheduler=scheduler,
        bandwidth_bps=bandwidth_bps,
        namespaces=namespaces,
        environment={recording.VARIABLE: str(int(record))},
        timeout_s=_TIMEOUT_S,
    )
    run_job(spec).check()
    workers = read_worker_results(directory)
    if len(workers) != WORKERS:
        raise JobFailed(f"{scheduler}: not every worker wrote a result: see {directory}/logs")
    _check(scheduler, workers)
    return Finished(directory, workers)


def summarize(
    scheduler: str, bandwidth_bps: int | None, namespaces: bool, jobs: Sequence[Finished]
) -> dict[str, Any]:
    """The row of one scheduler on one link; ``jobs`` are its rounds."""
    workers = [worker for job in jobs for worker in job.workers]
    times_ns = [[worker["iteration_ns"] for worker in job.workers] for job in jobs]
    hashes = {worker["parameters_sha256"] for worker in workers}
    if len(hashes) != 1:
        raise JobFailed(f"{scheduler}: workers or rounds ended with different parameters")
    settings, partition_bytes = schedulers.resolve(scheduler, {})
    # On loopback there is no link, and all roles share the machine: no bound worth the name.
    bounds = [bound_ns(worker["profile"], bandwidth_bps) for worker in workers]
    bound = min(bounds) if namespaces else None
    first = workers[0]
    return {
        "workload": WORKLOAD,
        "scheduler": scheduler,
        "bandwidth_bps": bandwidth_bps,
        "workers": WORKERS,
        "servers": SERVERS,
        "partition_bytes": partition_bytes,
        "settings": {
            **settings,
            "warmup_iterations": WARMUP_ITERATIONS,
            "iterations": sum(len(job[0]) for job in times_ns),
            "rounds": len(jobs),
            "updates": first["updates"],
        },
        "paced": False,
        **timing_fields(times_ns, first["batch_size"], bound),
        "compute_ns": min(map(_compute_ns, workers)),
        "scheduled_partitions": min(worker["scheduled_partitions"] for worker in workers),
        "final_loss": first["final_loss"],
        "test_accuracy": first["test_accuracy"],
        "parameters_sha256": hashes.pop(),
        "run": str(jobs[-1].run_directory),
        "runs": [str(job.run_directory) for job in jobs],
    }


def share_bounds(rows: Sequence[dict[str, Any]]) -> None:
    """Give all rows of one workload and link the lowest bound that was computed for one of them.

    They did the same work on the same machine, so what one worker could do is a bound for all.
    """
    lowest: dict[tuple[str, int | None], int] = {}
    for row in rows:
        if row["bound_ns"] is not None:
            link = (row["workload"], row["bandwidth_bps"])
            lowest[link] = min(row["bound_ns"], lowest.get(link, row["bound_ns"]))
    for row in rows:
        bound = lowest.get((row["workload"], row["bandwidth_bps"]))
        if bound is not None:
            row["bound_ns"] = bound
            row["bound_ratio"] = round(row["iteration_ns"]["median"] / bound, 4)


def bound_ns(profile: Mapping[str, Any], bandwidth_bps: int | None) -> int:
    """The shortest iteration that a worker with this compute profile could make."""
    tensors = profile["tensors"]
    return _core.iteration_bound_ns(
        [tensor["size_bytes"] for tensor in tensors],
        [tensor["ready_ns"] for tensor in tensors],
        [tensor["forward_ns"] for tensor in tensors],
        backward_ns=profile["backward_ns"],
        bandwidth_bps=payload_bps(bandwidth_bps),
        workers=WORKERS,
        servers=SERVERS,
    )


def _compute_ns(worker: Mapping[str, Any]) -> int:
    profile = worker["profile"]
    return int(profile["forward_ns"] + profile["backward_ns"])


def _check(scheduler: str, workers: Sequence[Mapping[str, Any]]) -> None:
    scheduled = {worker["scheduled_partitions"] > 0 for worker in workers}
    if scheduled != {scheduler != schedulers.STOCK}:
        was = "was" if True in scheduled else "was not"
        raise JobFailed(f"{scheduler}: the job {was} scheduled by byteprophet's queue")
