"""Trains a small ResNet in Gluon on a slow link under several schedulers, and compares.

    make demo-mxnet

Two workers and a server, each on a host of its own (network namespaces), run gluon/train.py, which
knows nothing of schedulers, under BytePS as shipped, without priorities, and under policies, in
turn, round after round. All must end with the same parameters, bit for bit, and a network that has
learned: otherwise the exit status is 1. It needs the environment that ``make mxnet`` makes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from script import run_script, scheduler_names

from byteprophet import schedulers
from byteprophet.bench import describe_machine
from byteprophet.bench.result import timing_fields
from byteprophet.errors import JobFailed, UserError
from byteprophet.launcher import JobSpec, make_run_directory, read_worker_results, run_job
from byteprophet.network import format_rate, parse_rate, why_not_permitted
from byteprophet.report.console import table_console
from byteprophet.whole_files import write_whole

WORKERS, SERVERS = 2, 1
WARMUP_ITERATIONS = 6
_LEAST_ACCURACY = 0.9
_TIMEOUT_S = 600.0
_TRAIN = Path(__file__).parent / "gluon" / "train.py"
_PROGRESS = Console(stderr=True)


def main(arguments: Sequence[str]) -> None:
    """Run, print, save, judge."""
    options = _parse(arguments)
    names = scheduler_names(options.schedulers)
    if options.rounds < 1 or options.iterations <= WARMUP_ITERATIONS:
        raise UserError(f"at least 1 round of {WARMUP_ITERATIONS + 1} iterations is needed")
    bandwidth_bps = parse_rate(options.bandwidth, "--bandwidth")
    reason = why_not_permitted()
    if reason is not None:
        bandwidth_bps = None

    jobs: dict[str, list[list[dict[str, Any]]]] = {name: [] for name in names}
    for number in range(1, options.rounds + 1):
        for name in names:
            _PROGRESS.print(f"demo: round {number} of {options.rounds}: {name}")
            jobs[name].append(run_training(name, bandwidth_bps, options.iterations, options.runs))
    rows = [summarize(name, jobs[name]) for name in names]

    console = table_console()
    if reason is not None:
        console.print(f"loopback: namespaces are not permitted here ({reason})")
    console.print(_table(rows, format_rate(bandwidth_bps)))
    out = make_run_directory(options.runs, "gluon-demo")
    report = {
        "schema": 1,
        "machine": describe_machine(),
        "loopback": reason,
        "bandwidth_bps": bandwidth_bps,
        "results": rows,
    }
    write_whole(out / "demo.json", json.dumps(report, indent=2) + "\n")
    console.print(f"saved: {out}/demo.json", soft_wrap=True)
    judge(rows)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train a small Gluon network under several schedulers and compare.",
        epilog="example: python experiments/gluon_demo.py --schedulers fifo,prophet --rounds 1",
    )
    parser.add_argument("--schedulers", default="stock,fifo,p3,prophet", help="between commas")
    parser.add_argument("--bandwidth", default="500mbit", help="of each worker's link")
    parser.add_argument("--rounds", type=int, default=2, help="jobs per scheduler, in turn")
    parser.add_argument("--iterations", type=int, default=44, help="updates per job")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="for run directories")
    return parser.parse_args(arguments)


def run_training(
    scheduler: str, bandwidth_bps: int | None, iterations: int, runs: Path
) -> list[dict[str, Any]]:
    """Train under ``scheduler``; what the workers wrote, by rank. JobFailed if that failed."""
    directory = make_run_directory(runs, f"gluon-{scheduler}-{format_rate(bandwidth_bps)}")
    lengths = ["--iterations", str(iterations), "--warmup", str(WARMUP_ITERATIONS)]
    spec = JobSpec(
        command=(sys.executable, str(_TRAIN), *lengths),
        run_directory=directory,
        workers=WORKERS,
        servers=SERVERS,
        scheduler=scheduler,
        bandwidth_bps=bandwidth_bps,
        namespaces=bandwidth_bps is not None,
        timeout_s=_TIMEOUT_S,
    )
    run_job(spec).check()
    workers = read_worker_results(directory)
    if len(workers) != WORKERS:
        raise JobFailed(f"{scheduler}: not every worker wrote a result: see {directory}/logs")
    if any((w["scheduled_partitions"] > 0) != (scheduler != schedulers.STOCK) for w in workers):
        raise JobFailed(f"{scheduler}: scheduled by byteprophet where it should not, or not so")
    return workers


def summarize(scheduler: str, jobs: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """The row of one scheduler; ``jobs`` are its rounds, each with its workers' results."""
    workers = [worker for job in jobs for worker in job]
    hashes = {worker["parameters_sha256"] for worker in workers}
    if len(hashes) != 1:
        raise JobFailed(f"{scheduler}: workers or rounds ended with different parameters")
    times_ns = [[worker["iteration_ns"] for worker in job] for job in jobs]
    return {
        "scheduler": scheduler,
        **timing_fields(times_ns, workers[0]["batch_size"], None),
        "scheduled_partitions": min(worker["scheduled_partitions"] for worker in workers),
        "final_loss": workers[0]["final_loss"],
        "test_accuracy": min(worker["test_accuracy"] for worker in workers),
        "parameters_sha256": hashes.pop(),
    }


def _table(rows: Sequence[Mapping[str, Any]], link: str) -> Table:
    title = f"Gluon ResNet on handwritten digits, real training: {WORKERS} workers, link {link}"
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("scheduler")
    rates = {row["scheduler"]: row["samples_per_s"] for row in rows}
    bases = [name for name in ("stock", "fifo") if name in rates]
    for column in ("samples/s", "iteration ms", "p10-p90", *(f"vs {base}" for base in bases)):
        table.add_column(column, justify="right")
    table.add_column("test accuracy", justify="right")
    table.add_column("parameters")
    for row in rows:
        iteration = row["iteration_ns"]
        table.add_row(
            row["scheduler"],
            f"{row['samples_per_s']:.0f}",
            f"{iteration['median'] / 1e6:.0f}",
            f"{iteration['p10'] / 1e6:.0f}-{iteration['p90'] / 1e6:.0f}",
            *(f"{row['samples_per_s'] / rates[base]:.2f}" for base in bases),
            f"{row['test_accuracy']:.4f}",
            row["parameters_sha256"][:12],
        )
    return table


def judge(rows: Sequence[Mapping[str, Any]]) -> None:
    """JobFailed with one line unless everything is as it must be."""
    if len({row["parameters_sha256"] for row in rows}) != 1:
        raise JobFailed("the final parameters differ between schedulers")
    accuracy = min(row["test_accuracy"] for row in rows)
    if accuracy < _LEAST_ACCURACY:
        raise JobFailed(f"test accuracy {accuracy:.4f} is below {_LEAST_ACCURACY}")


if __name__ == "__main__":
    run_script(main)
