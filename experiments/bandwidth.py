"""Bandwidth throttling: the rate of every scheduler over the rate of the workers' links.

    python experiments/bandwidth.py

Two workers and a server run the digits training (real) and ResNet-50 (paced, 0.3 s forward and
0.6 s backward) at 0.2, 0.5, 1, 2 and 4 Gbit/s. Each cell is one job; schedulers take turns, so
that what changes on the machine meanwhile meets all of them. Finished cells are kept in the results
file (``rows.py``): started again, the script goes on where it stopped. Half an hour per round on
two cores.

Writes ``bandwidth.json`` (rows as ``byteprophet bench`` gives them, with their round) and
``bandwidth.png`` to experiments/results.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import digits_job
from recorded import add_places
from rows import Row, Rows
from script import run_script, scheduler_names

from byteprophet.bench import Case, Plan, run_bench
from byteprophet.cli.lists import split
from byteprophet.errors import UserError
from byteprophet.network import format_rate, parse_rate
from byteprophet.report.plot import draw_rates, save

_PACED = "resnet50"


@dataclass(frozen=True)
class Lengths:
    """How long the jobs of a results file are; one file holds jobs of one length only."""

    digits_iterations: int = 40  # all updates
    paced_iterations: int = 6  # measured ones
    paced_compute_ns: int = 900_000_000


_QUICK = Lengths(digits_iterations=10, paced_iterations=2, paced_compute_ns=90_000_000)


def main(arguments: Sequence[str]) -> None:
    """Run what is missing, then draw."""
    options = _parse(arguments)
    lengths = _QUICK if options.quick else Lengths()
    rows = Rows(options.out / "bandwidth.json", asdict(lengths), paced=None)
    chosen = [
        dict(row)
        for row in rows.complete(
            list(_cells(options)), _label, lambda cell: _run(cell, lengths, options.runs)
        )
    ]
    digits_job.share_bounds(chosen)
    picture = options.out / "bandwidth.png"
    save(draw_rates(chosen), picture)
    print(f"saved: {options.out / 'bandwidth.json'}, {picture}")


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Measure the rate of schedulers over the bandwidth of the workers' links.",
        epilog="example: python experiments/bandwidth.py --bandwidth 500mbit,1gbit --rounds 2",
    )
    parser.add_argument("--workloads", default=f"{_PACED},{digits_job.WORKLOAD}")
    parser.add_argument("--schedulers", default="stock,fifo,p3,bytescheduler,prophet")
    parser.add_argument("--bandwidth", default="200mbit,500mbit,1gbit,2gbit,4gbit")
    parser.add_argument("--rounds", type=int, default=1, help="jobs per cell; medians are drawn")
    parser.add_argument("--quick", action="store_true", help="short jobs, to try this script out")
    add_places(parser)
    return parser.parse_args(arguments)


def _cells(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    workloads = split(options.workloads, "--workloads")
    for workload in workloads:
        if workload not in (_PACED, digits_job.WORKLOAD):
            raise UserError(
                f"--workloads {workload!r}: choose from {_PACED}, {digits_job.WORKLOAD}"
            )
    names = scheduler_names(options.schedulers)
    rates_bps = [
        parse_rate(text, "--bandwidth") for text in split(options.bandwidth, "--bandwidth")
    ]
    if options.rounds < 1:
        raise UserError("--rounds must be at least 1")
    rounds = range(1, options.rounds + 1)
    for number, workload, rate_bps, name in itertools.product(rounds, workloads, rates_bps, names):
        if rate_bps is None:
            raise UserError("--bandwidth: unlimited is not a bandwidth that can be drawn")
        yield {
            "round": number,
            "workload": workload,
            "bandwidth_bps": rate_bps,
            "scheduler": name,
        }


def _label(cell: Row) -> str:
    rate = format_rate(cell["bandwidth_bps"])
    return f"round {cell['round']}, {cell['workload']}, {rate}, {cell['scheduler']}"


def _run(cell: Row, lengths: Lengths, runs: Path) -> dict[str, Any]:
    scheduler, rate_bps = cell["scheduler"], cell["bandwidth_bps"]
    if cell["workload"] == digits_job.WORKLOAD:
        job = digits_job.run_digits(scheduler, rate_bps, True, lengths.digits_iterations, runs)
        row = digits_job.summarize(scheduler, rate_bps, True, [job])
    else:
        case = Case(cell["workload"], scheduler, rate_bps, compute_ns=lengths.paced_compute_ns)
        plan = Plan((case,), lengths.paced_iterations, rounds=1)
        (row,) = run_bench(plan, runs, namespaces=True, progress=lambda _line: None)
    # The results may leave this machine, whose paths mean nothing elsewhere.
    del row["runs"]
    return {**row, "run": Path(row["run"]).name}


if __name__ == "__main__":
    run_script(main)
