"""Replays of real jobs, each from its own record: how wrong they are, beside Daydream's model.

    python experiments/replays.py

Every policy, 2 to 4 workers, one and two servers, links of four rates; paced ResNet-18 and
ResNet-50, real training of digits; and without BytePS every all-reduce runtime, 2 and 4 ranks.
Each is recorded, replayed unchanged, and its replayed iteration time compared with the measured one
(medians of the slowest worker's, the first five left out). Daydream's model beside it: each tensor
alone on the link, its size over the bandwidth.

Prints a line per job and the mean and worst error. ``busy`` is the part of all cores in use while
the job ran, whoever used them: replay knows nothing of that. Rows are kept, run directories as
well: started again, the script goes on where it stopped. Writes ``replays.json`` to
experiments/results. Half an hour per round.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from digits_job import WORKLOAD as DIGITS
from digits_job import run_digits
from recorded import add_places
from rich.table import Table
from rows import Rows
from script import run_script

from byteprophet import schedulers
from byteprophet.bench import Case, Plan
from byteprophet.bench.case import all_reduce_case, warmup_of
from byteprophet.bench.cpu import CpuWatch
from byteprophet.bench.execute import check_case, run_case
from byteprophet.bench.runtimes import BYTEPS, RUNTIMES
from byteprophet.errors import UserError
from byteprophet.measure.run import Run
from byteprophet.measure.servers import measure_run
from byteprophet.network import parse_rate
from byteprophet.replay.predict import predict
from byteprophet.replay.what_if import Changes
from byteprophet.report.console import table_console
from byteprophet.validate.validation import Errors

MEAN, WORST = 0.02, 0.05
"""What the errors should be at most."""

_COMPUTE_NS = {"resnet18": 1_200_000_000, "resnet50": 2_400_000_000}
_COLLECTIVE = tuple(name for name in RUNTIMES if name != BYTEPS)

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Job:
    """``runs_under``: a policy, or a runtime without servers."""

    workload: str
    runs_under: str
    bandwidth: str
    workers: int = 2
    servers: int = 1

    @property
    def label(self) -> str:
        """What rows call it."""
        roles = f"{self.workers}w" if self.collective else f"{self.workers}w{self.servers}s"
        return f"{self.workload}-{self.runs_under}-{self.bandwidth}-{roles}"

    @property
    def collective(self) -> bool:
        """Whether ranks reduce among themselves."""
        return self.runs_under in _COLLECTIVE


JOBS = (
    Job("resnet18", "stock", "300mbit"),
    Job("resnet18", "fifo", "200mbit"),
    Job("resnet18", "p3", "300mbit", workers=3),
    Job("resnet18", "bytescheduler", "200mbit"),
    Job("resnet18", "bytescheduler-reduce", "300mbit", workers=3, servers=2),
    Job("resnet18", "prophet-paper", "300mbit"),
    Job("resnet18", "prophet", "500mbit"),
    Job("resnet18", "prophet", "200mbit", workers=4, servers=2),
    Job("resnet18", "fifo", "200mbit", workers=4, servers=2),
    Job("resnet50", "prophet", "400mbit", servers=2),
    Job(DIGITS, "prophet", "100mbit"),
    Job(DIGITS, "fifo", "200mbit"),
    Job("resnet18", "ddp", "300mbit"),
    Job("resnet18", "ddp", "300mbit", workers=4),
    *(
        Job("resnet18", runtime, bandwidth, workers)
        for runtime in ("allreduce", "dear", "dear-planned")
        for bandwidth, workers in (("300mbit", 2), ("300mbit", 4), ("500mbit", 2))
    ),
    Job("resnet18", "wfbp", "300mbit"),
    Job("resnet18", "fsdp2", "300mbit"),
)


def main(arguments: Sequence[str]) -> None:
    """Run what is missing, print."""
    parser = argparse.ArgumentParser(
        description="Replay real jobs from their own records.",
        epilog="example: python experiments/replays.py --jobs resnet18-stock-300mbit-2w1s",
    )
    add_places(parser)
    jobs = {job.label: job for job in JOBS}
    parser.add_argument("--jobs", default=",".join(jobs), help="of: " + ", ".join(jobs))
    parser.add_argument("--job-iterations", type=int, default=16, help="of each, warm-up included")
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args(arguments)
    wanted = options.jobs.split(",")
    if unknown := [label for label in wanted if label not in jobs]:
        raise UserError(f"--jobs {unknown[0]}: must be of {', '.join(jobs)}")
    if options.job_iterations < 10 or options.rounds < 1:
        raise UserError("--job-iterations must be at least 10, --rounds at least 1")
    rows = Rows(options.out / "replays.json", {"iterations": options.job_iterations}, paced=None)
    cells = [
        {"job": label, "round": number}
        for number in range(1, options.rounds + 1)
        for label in jobs
        if label in wanted
    ]
    chosen = rows.complete(
        cells,
        lambda cell: f"{cell['job']}, round {cell['round']}",
        lambda cell: _run(jobs[cell["job"]], options),
    )
    show(chosen)
    print(f"saved: {options.out / 'replays.json'}")


def _run(job: Job, options: argparse.Namespace) -> dict[str, Any]:
    with CpuWatch() as watch:
        begin_ns = time.monotonic_ns()
        directory = _record(job, options)
        busy = watch.share(begin_ns, time.monotonic_ns()).mean
    found = predict(measure_run(Run(directory)), Changes())
    return {
        "paced": job.workload != DIGITS,
        "measured_ns": found.measured_ns,
        "replayed_ns": found.median_ns,
        "low_ns": found.low_ns,
        "high_ns": found.high_ns,
        "daydream_ns": found.daydream_ns,
        "bound_ns": found.bound_ns,
        "machine_cpu_fraction": round(busy, 4),
        "run": directory.name,
    }


def _record(job: Job, options: argparse.Namespace) -> Path:
    """The run directory of a recorded job."""
    rate_bps = parse_rate(job.bandwidth, "--bandwidth")
    if job.workload == DIGITS:
        count = options.job_iterations
        return run_digits(
            job.runs_under, rate_bps, True, count, options.runs, record=True
        ).run_directory
    case = Case(
        job.workload,
        schedulers.DEFAULT if job.collective else job.runs_under,
        rate_bps,
        workers=job.workers,
        servers=job.servers,
        compute_ns=_COMPUTE_NS[job.workload],
    )
    warmup = 0
    if job.collective:
        case = all_reduce_case(case, job.runs_under, {})
        warmup = warmup_of([case])  # until its buckets stay as they are
    plan = Plan(
        (case,), options.job_iterations, 1, warmup_iterations=warmup, record=True, idle_s=0.0
    )
    workload = check_case(case, plan, options.runs, namespaces=True)
    return run_case(case, plan, workload, options.runs, namespaces=True).directory


def errors(rows: Sequence[Row], what: str) -> list[float]:
    """``what`` over measured, less 1, of each row."""
    return [row[what] / row["measured_ns"] - 1 for row in rows]


def show(rows: Sequence[Row]) -> None:
    """The table, and the mean and worst error."""
    table = Table(box=None, pad_edge=False)
    table.add_column("job")
    for heading in ("round", "measured ms", "replayed ms", "error", "Daydream", "busy"):
        table.add_column(heading, justify="right")
    ours, theirs = errors(rows, "replayed_ns"), errors(rows, "daydream_ns")
    for row, error, daydream in zip(rows, ours, theirs, strict=True):
        table.add_row(
            row["job"],
            str(row["round"]),
            f"{row['measured_ns'] / 1e6:.1f}",
            f"{row['replayed_ns'] / 1e6:.1f}",
            f"{error:+.1%}",
            f"{daydream:+.1%}",
            f"{row['machine_cpu_fraction']:.0%}",
        )
    table_console().print(table)
    for line in lines(ours, theirs):
        print(line)


def lines(ours: Sequence[float], theirs: Sequence[float]) -> list[str]:
    """What is said of the errors of replay and of Daydream's model."""
    found, simple = Errors.of(ours), Errors.of(theirs)
    held = "holds" if found.mean <= MEAN and found.worst <= WORST else "does not hold"
    return [
        f"{len(ours)} replays: error mean {found.mean:.1%}, worst {found.worst:.1%} "
        f"(at most {MEAN:.0%} and {WORST:.0%}: {held})",
        f"Daydream's model: mean {simple.mean:.1%}, worst {simple.worst:.1%}",
    ]


if __name__ == "__main__":
    run_script(main)
