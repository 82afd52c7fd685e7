"""Trains a small ResNet on real data under every scheduler on a slow link, and compares.

    make demo

Two workers and a server, each on a host of its own (network namespaces), train the same network on
the same batches under BytePS as shipped and under each policy, in turn, round after round. All must
end with the same parameters, bit for bit, and with those that one process gets that averages the
same gradients, within float tolerance: otherwise, or if the network has not learned, the exit
status is 1.

The link's 500 Mbit/s are fixed, not chosen by this machine's speed: the 6.2 MB of an exchange take
0.10 s one way, about twice what one core of a current machine computes per iteration.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

import numpy as np
from digits_job import WORKERS, Finished, run_digits, share_bounds, summarize
from rich import box
from rich.table import Table
from script import progress_of, run_script, scheduler_names

from byteprophet.bench import describe_machine
from byteprophet.errors import JobFailed, UserError
from byteprophet.launcher import make_run_directory
from byteprophet.launcher.forked_process import ForkPlan, Process, forks_wanted
from byteprophet.network import format_rate, parse_rate, why_not_permitted
from byteprophet.report.console import lines_text, table_console
from byteprophet.report.plot import draw_iterations, save
from byteprophet.whole_files import write_whole

_SCHEDULERS = "stock,fifo,p3,bytescheduler,prophet"
_BANDWIDTH = "500mbit"
_LEAST_ACCURACY = 0.95
TOLERANCE = 1e-4
"""Of the largest relative difference to the reference: float32 sums in another order, grown by
some dozens of updates. Where both do the same arithmetic in the same order it is 0."""
_REFERENCE_TIMEOUT_S = 300.0
_REFERENCE = Path(__file__).parent / "digits" / "reference.py"

_progress = progress_of("demo")


def main(arguments: Sequence[str]) -> None:
    """Run, print, save, judge."""
    options = _parse(arguments)
    names = scheduler_names(options.schedulers)
    if options.rounds < 1:
        raise UserError(f"--rounds {options.rounds}: must be at least 1")
    bandwidth_bps = parse_rate(options.bandwidth, "--bandwidth")
    reason = why_not_permitted()
    if reason is not None:
        bandwidth_bps = None

    jobs: dict[str, list[Finished]] = {name: [] for name in names}
    for number in range(1, options.rounds + 1):
        for name in names:
            _progress(f"round {number} of {options.rounds}: {name}")
            jobs[name].append(
                run_digits(name, bandwidth_bps, reason is None, options.iterations, options.runs)
            )
    _progress("the same training in one process")
    out = make_run_directory(options.runs, "demo")
    reference = run_reference(out, jobs[names[0]][0].workers[0]["updates"])
    rows = [summarize(name, bandwidth_bps, reason is None, jobs[name]) for name in names]
    share_bounds(rows)
    difference = largest_difference(
        out / "reference.npz", jobs[names[0]][0].run_directory / "results" / "worker-0.npz"
    )

    console = table_console()
    if reason is not None:
        console.print(f"loopback: namespaces are not permitted here ({reason})")
    console.print(_table(rows, reference, difference))
    report = {
        "schema": 1,
        "machine": describe_machine(),
        "loopback": reason,
        "results": rows,
        "reference": {**reference, "largest_relative_difference": difference},
    }
    write_whole(out / "demo.json", json.dumps(report, indent=2) + "\n")
    save(draw_iterations(rows), out / "demo.png")
    console.print(f"saved: {out}/demo.json, demo.png", soft_wrap=True)
    judge(rows, difference)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train a small network under several schedulers on a slow link and compare.",
        epilog="example: python experiments/demo.py --schedulers stock,prophet --rounds 1",
    )
    parser.add_argument("--schedulers", default=_SCHEDULERS, help="separated by commas")
    parser.add_argument("--bandwidth", default=_BANDWIDTH, help="of each worker's link")
    parser.add_argument("--rounds", type=int, default=2, help="jobs per scheduler, in turn")
    parser.add_argument("--iterations", type=int, help="updates per job; default: four epochs")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="for run directories")
    return parser.parse_args(arguments)


def run_reference(out: Path, iterations: int) -> dict[str, Any]:
    """Train in one process; ``reference.json`` and ``reference.npz`` are then in ``out``."""
    places = ("--out", str(out), "--ranks", str(WORKERS))
    command = (sys.executable, str(_REFERENCE), *places, "--iterations", str(iterations))
    plan = ForkPlan(command) if forks_wanted(os.environ, False) else None
    # As workers have it: so they and the reference have one fork server.
    environment = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **os.environ}
    with Process(command, plan, env=environment) as process:
        try:
            status = process.wait(_REFERENCE_TIMEOUT_S)
        except TimeoutExpired:
            process.kill()
            raise JobFailed(f"the reference took more than {_REFERENCE_TIMEOUT_S:g} s") from None
    if status:
        raise JobFailed(f"the reference ended with status {status}")
    reference: dict[str, Any] = json.loads((out / "reference.json").read_text(encoding="utf-8"))
    return reference


def largest_difference(expected: Path, found: Path) -> float:
    """Over all tensors, the largest difference over the largest value of the tensor expected."""
    with np.load(expected) as one, np.load(found) as other:
        if set(one.files) != set(other.files):
            raise JobFailed(f"{found} has other parameters than the reference")
        return max(
            float(np.max(np.abs(one[name] - other[name])) / np.max(np.abs(one[name])))
            for name in one.files
        )


def _table(
    rows: Sequence[Mapping[str, Any]], reference: Mapping[str, Any], difference: float
) -> Table:
    first = rows[0]
    if first["bandwidth_bps"] is None:
        link = "no limit"
    else:
        link = f"links of {format_rate(first['bandwidth_bps'])}"
    times = f"compute without communication {first['compute_ns'] / 1e6:.0f} ms an iteration"
    if first["bound_ns"] is not None:
        times += f", lower bound {first['bound_ns'] / 1e6:.0f} ms"
    title = (
        f"ResNet on handwritten digits, real training: {first['workers']} workers, "
        f"{first['servers']} server, {link}",
        times,
    )
    table = Table(title=lines_text(title, "table.title"), box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("scheduler")
    for name in ("samples/s", "iteration ms", "p10-p90", "vs stock", "x bound", "final loss"):
        table.add_column(name, justify="right")
    table.add_column("test accuracy", justify="right")
    table.add_column("parameters")
    stock = next((row["samples_per_s"] for row in rows if row["scheduler"] == "stock"), None)
    for row in rows:
        iteration = row["iteration_ns"]
        table.add_row(
            row["scheduler"],
            f"{row['samples_per_s']:.0f}",
            f"{iteration['median'] / 1e6:.0f}",
            f"{iteration['p10'] / 1e6:.0f}-{iteration['p90'] / 1e6:.0f}",
            f"{row['samples_per_s'] / stock:.2f}" if stock else "",
            f"{row['bound_ratio']:.2f}" if row["bound_ratio"] else "",
            f"{row['final_loss']:.4f}",
            f"{row['test_accuracy']:.4f}",
            row["parameters_sha256"][:12],
        )
    table.add_row(
        "one process",
        *[""] * 5,
        f"{reference['final_loss']:.4f}",
        f"{reference['test_accuracy']:.4f}",
        reference["parameters_sha256"][:12],
    )
    table.caption = f"largest relative difference to one process: {difference:.1e}"
    table.caption_justify = "left"
    return table


def judge(rows: Sequence[Mapping[str, Any]], difference: float) -> None:
    """JobFailed with one line unless everything is as it must be."""
    if len({row["parameters_sha256"] for row in rows}) != 1:
        raise JobFailed("the final parameters differ between schedulers")
    accuracy = min(row["test_accuracy"] for row in rows)
    if accuracy < _LEAST_ACCURACY:
        raise JobFailed(f"test accuracy {accuracy:.4f} is below {_LEAST_ACCURACY}")
    # Written so that a difference that is not a number fails too.
    if not difference <= TOLERANCE:
        raise JobFailed(
            f"the final parameters differ from those of one process by {difference:.1e} of the "
            f"largest value, more than {TOLERANCE:g}"
        )


if __name__ == "__main__":
    run_script(main)
