"""Bandwidth throttling: the rate of every scheduler over the rate of the workers' links.

    python experiments/bandwidth.py

Two workers and a server run the digits training (real) and ResNet-50 (paced, 0.3 s forward and
0.6 s backward) at 0.2, 0.5, 1, 2 and 4 Gbit/s. Each cell is one job; schedulers take turns, so
that what changes on the machine meanwhile meets all of them. Finished cells are kept in the results
file: started again, the script goes on where it stopped. Half an hour per round on two cores.

Writes ``bandwidth.json`` (rows as ``byteprophet bench`` gives them, with their round) and
``bandwidth.png`` to experiments/results.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import digits_job
from script import progress_of, run_script, scheduler_names

from byteprophet.bench import Case, Plan, describe_machine, run_bench
from byteprophet.cli.lists import split
from byteprophet.errors import UserError
from byteprophet.network import format_rate, parse_rate, why_not_permitted
from byteprophet.report.plot import draw_rates, save
from byteprophet.whole_files import write_whole

SCHEMA = 1
_RESULTS = Path(__file__).parent / "results"
_PACED = "resnet50"

_progress = progress_of("bandwidth")


@dataclass(frozen=True)
class Lengths:
    """How long the jobs of a results file are; one file holds jobs of one length only."""

    digits_iterations: int = 40  # all updates
    paced_iterations: int = 6  # measured ones
    paced_compute_ns: int = 900_000_000


_QUICK = Lengths(digits_iterations=10, paced_iterations=2, paced_compute_ns=90_000_000)


@dataclass(frozen=True)
class Cell:
    """One job."""

    round: int
    workload: str
    bandwidth_bps: int
    scheduler: str

    def is_in(self, row: dict[str, Any]) -> bool:
        """Whether ``row`` is this cell's."""
        return all(row[field] == value for field, value in asdict(self).items())


class Results:
    """The results file; every change is on disk at once."""

    def __init__(self, path: Path, lengths: Lengths) -> None:
        self._path = path
        self._lengths = asdict(lengths)
        self.rows: list[dict[str, Any]] = []
        if path.exists():
            try:
                content = json.loads(path.read_text(encoding="utf-8"))
                schema, before = content["schema"], content["lengths"]
                self.rows = content["results"]
            except (ValueError, KeyError, TypeError):
                raise UserError(f"{path}: is not a results file of this script") from None
            if schema != SCHEMA or before != self._lengths:
                raise UserError(
                    f"{path}: its jobs have other lengths ({before}) than asked for "
                    f"({self._lengths}); choose another --out or remove it"
                )

    def add(self, row: dict[str, Any]) -> None:
        """Take in one more row and write the file."""
        self.rows.append(row)
        digits_job.share_bounds(self.rows)
        content = {
            "schema": SCHEMA,
            "machine": describe_machine(),
            "lengths": self._lengths,
            "results": self.rows,
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self._path, json.dumps(content, indent=1) + "\n")


def main(arguments: Sequence[str]) -> None:
    """Run what is missing, then draw."""
    options = _parse(arguments)
    lengths = _QUICK if options.quick else Lengths()
    cells = list(_cells(options))
    results = Results(options.out / "bandwidth.json", lengths)
    missing = [cell for cell in cells if not any(cell.is_in(row) for row in results.rows)]
    reason = why_not_permitted() if missing else None
    if reason is not None:
        raise UserError(f"limited links need network namespaces: {reason}")
    for number, cell in enumerate(missing, start=1):
        _progress(
            f"job {number} of {len(missing)}: round {cell.round}, {cell.workload}, "
            f"{format_rate(cell.bandwidth_bps)}, {cell.scheduler}"
        )
        results.add(_run(cell, lengths, options.runs))
    picture = options.out / "bandwidth.png"
    save(draw_rates(results.rows), picture)
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
    parser.add_argument("--out", type=Path, default=_RESULTS, help="directory for the results")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="for run directories")
    return parser.parse_args(arguments)


def _cells(options: argparse.Namespace) -> Iterator[Cell]:
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
        yield Cell(number, workload, rate_bps, name)


def _run(cell: Cell, lengths: Lengths, runs: Path) -> dict[str, Any]:
    if cell.workload == digits_job.WORKLOAD:
        job = digits_job.run_digits(
            cell.scheduler, cell.bandwidth_bps, True, lengths.digits_iterations, runs
        )
        row = digits_job.summarize(cell.scheduler, cell.bandwidth_bps, True, [job])
    else:
        case = Case(
            cell.workload, cell.scheduler, cell.bandwidth_bps, compute_ns=lengths.paced_compute_ns
        )
        plan = Plan((case,), lengths.paced_iterations, rounds=1)
        row = run_bench(plan, runs, namespaces=True, progress=_quiet)[0]
    # The results may leave this machine, whose paths mean nothing elsewhere.
    del row["runs"]
    return {**row, "run": Path(row["run"]).name, "round": cell.round}


def _quiet(_line: str) -> None:
    """The bench's own progress would say again what has been said."""


if __name__ == "__main__":
    run_script(main)
