"""What travels together under ``dear``: sizes swept, searched in training, planned from a profile.

    python experiments/fusion.py

In each cell groups of twenty sizes from 256 KiB to 96 MiB run once, one job each. Then run in turn,
round after round, the best three of them, the search of a size while training (ten trials, which
warm-up covers) and the plan made from a job's first iterations. Printed are the sweep, and the
iterations of the last two over those of the fastest of the three, with their noise.

Paced models over links as in ``allreduce.py``, with the same options. Jobs are recorded as a grid's
are, in ``--out``: started again, the script runs what is missing; ``--report`` runs nothing. A cell
of ResNet-50 takes ten minutes on two quiet cores, five of them the search.
"""

from __future__ import annotations

import argparse
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from statistics import median

import numpy as np
from allreduce_cells import add_cell_options, best, cells_of, counted, run_warmed
from rich import box
from rich.table import Table
from script import print_code_notes, progress_of, run_script

from byteprophet.allreduce.groups import BUCKET_BYTES
from byteprophet.bench import spread
from byteprophet.bench.grid import Grid
from byteprophet.bench.grid_jobs import Job, Variant
from byteprophet.bench.grid_phases import in_turn
from byteprophet.bench.grid_run import namespaces_for, prepare
from byteprophet.bench.grid_store import Record, turn_of
from byteprophet.errors import UserError
from byteprophet.report.console import table_console

RUNTIME = "dear"
SWEEP, COMPARED = "sweep", "compare"
CONFIRMED = 3
SIZES = tuple(
    int(size) for size in np.geomspace(min(BUCKET_BYTES), max(BUCKET_BYTES), 20).round(-3)
)
_SIZE = "bucket_bytes"
_SEARCHED = Variant.of_runtime(RUNTIME, {"tune": 1})
_PLANNED = Variant.of_runtime(RUNTIME, {})


def main(arguments: Sequence[str]) -> None:
    """Run what is missing, print."""
    options = _parse(arguments)
    if options.rounds < 1:
        raise UserError(f"--rounds {options.rounds}: must be at least 1")
    grid = Grid("fusion", cells_of(options), options.iterations).slowed(options.slowed)
    if not options.report:
        measure(grid, options.rounds, options.out)
    records = counted(grid, options.out)
    print_tables(grid, records)
    print_code_notes(records)


def measure(grid: Grid, rounds: int, directory: Path) -> None:
    """Sweep in every cell, then compare; what there is already is not run again."""
    namespaces = namespaces_for(grid)
    prepared = prepare(grid, directory)

    def run(jobs: Sequence[Job]) -> None:
        run_warmed(grid, prepared, jobs, directory, namespaces, progress_of("fusion"))

    sizes = [Variant.of_runtime(RUNTIME, {_SIZE: size}) for size in SIZES]
    run(in_turn(SWEEP, prepared, [sizes] * len(prepared), 1))
    swept = [record for record in counted(grid, directory) if record["phase"] == SWEEP]
    variants = []
    for cell in grid.cells:
        of_cell = [record for record in swept if record["cell"] == cell.name]
        variants.append([*best(RUNTIME, of_cell)[:CONFIRMED], _SEARCHED, _PLANNED])
    run(in_turn(COMPARED, prepared, variants, rounds))


def over_best(records: Sequence[Record]) -> Iterator[tuple[str, spread.Ratio]]:
    """Of one cell: what was found, and its iterations over those of the best size compared."""
    compared = [record for record in records if record["phase"] == COMPARED]
    rounds: dict[str, dict[Hashable, list[int]]] = {}
    for record in compared:
        rounds.setdefault(record["variant"], {})[turn_of(record)] = record["iteration_ns"]
    sizes = best(RUNTIME, [record for record in compared if _SIZE in record["settings"]])
    if not sizes:
        return
    for name, variant in (("searched", _SEARCHED), ("planned", _PLANNED)):
        ratio = spread.of_shared_rounds(rounds.get(variant.label, {}), rounds[sizes[0].label])
        if ratio is not None:
            yield name, ratio


def print_tables(grid: Grid, records: Sequence[Record]) -> None:
    """The sweep of each cell, and what search and plan are over its best."""
    console = table_console(170)
    table = Table("cell", box=box.SIMPLE, title="sweep: iterations over those of the best size")
    for size in SIZES:
        table.add_column(f"{size / 1e6:.1f}", justify="right")
    summary = Table("cell", "found by", "over the best size", "95%", "should be", box=box.SIMPLE)
    for cell in grid.cells:
        of_cell = [record for record in records if record["cell"] == cell.name]
        times_ns = {
            record["settings"][_SIZE]: median(record["iteration_ns"])
            for record in of_cell
            if record["phase"] == SWEEP
        }
        if times_ns:
            least_ns = min(times_ns.values())
            ratios = [times_ns[size] / least_ns if size in times_ns else None for size in SIZES]
            table.add_row(cell.name, *("-" if r is None else f"{r:.2f}" for r in ratios))
        for name, ratio in over_best(of_cell):
            low, high = ratio.interval
            summary.add_row(
                cell.name, name, f"{ratio.value:.3f}", f"{low:.3f} to {high:.3f}", "to 1.03"
            )
    console.print(table)
    console.print("sizes in MB")
    console.print(summary)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Compare ways to find what travels together under dear.",
        epilog="example: python experiments/fusion.py --models bert-base --ratios 1.2",
    )
    add_cell_options(parser, models="resnet50", ratios="1.0", ranks="2", out="runs/fusion")
    parser.add_argument("--rounds", type=int, default=2, help="jobs of each way in a cell")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run_script(main)
