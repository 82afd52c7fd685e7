r"""Settings of policies in cells of a grid, on real jobs: what their defaults are measured against.

    python experiments/settings.py --cells resnet18-x0.9-2w1s-b4 --slowed 3 \
        prophet prophet:window_floor_bytes=262144,window_max_bytes=262144

A candidate is a scheduler, and after a colon what is set differently from its defaults. In each
cell all candidates run in turn, round after round, in reverse order in every second one. Printed is
every job's median iteration over the bound. (``policy_defaults.py`` simulates such candidates.)

Jobs are recorded as a grid's are, in ``--out``: started again, with other candidates too, the
script runs what is missing; ``--report`` runs nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

from rich import box
from rich.table import Table
from script import (
    add_record_options,
    print_code_notes,
    progress_of,
    run_script,
    scheduler_with_settings,
)

from byteprophet import schedulers
from byteprophet.bench.grid import Grid, load_grid
from byteprophet.bench.grid_jobs import Variant
from byteprophet.bench.grid_phases import in_turn
from byteprophet.bench.grid_report import select
from byteprophet.bench.grid_run import namespaces_for, prepare, run_jobs
from byteprophet.bench.grid_store import read_records
from byteprophet.cli.lists import split
from byteprophet.errors import UserError
from byteprophet.report.console import table_console

_PHASE = "settings"


def main(arguments: Sequence[str]) -> None:
    """Run what is missing, print."""
    options = _parse(arguments)
    candidates = [_candidate(text) for text in options.candidates]
    if options.rounds < 1:
        raise UserError(f"--rounds {options.rounds}: must be at least 1")
    whole = load_grid(options.grid).slowed(options.slowed)
    names = split(options.cells, "--cells")
    known = [cell.name for cell in whole.cells]
    for name in names:
        if name not in known:
            raise UserError(f"--cells: {name!r}: grid {options.grid} has {', '.join(known)}")
    grid = replace(whole, cells=tuple(cell for cell in whole.cells if cell.name in names))
    if not options.report:
        cells = prepare(grid, options.out)
        jobs = in_turn(_PHASE, cells, [candidates] * len(cells), options.rounds)
        namespaces = namespaces_for(grid)
        run_jobs(grid, cells, jobs, options.out, namespaces, progress_of("settings"))
    print_table(grid, candidates, options.out)


def print_table(grid: Grid, candidates: Sequence[Variant], directory: Path) -> None:
    """A row per cell and candidate."""
    labels = [variant.label for variant in candidates]
    records = [r for r in select(grid, read_records(directory)) if r["variant"] in labels]
    table = Table("cell", box=box.SIMPLE)
    table.add_column("candidate", overflow="fold")
    for title in ("mean over the bound", "rounds", "CPU"):
        table.add_column(title, justify="right")
    for cell in grid.cells:
        for variant in candidates:
            own = [r for r in records if (r["cell"], r["variant"]) == (cell.name, variant.label)]
            own.sort(key=lambda record: record["round"])
            ratios = [median(record["iteration_ns"]) / record["bound_ns"] for record in own]
            if ratios:
                rounds = " ".join(f"{ratio:.3f}" for ratio in ratios)
                cpu = fmean(record["machine_cpu_fraction"] for record in own)
                table.add_row(
                    cell.name, variant.label, f"{fmean(ratios):.4f}", rounds, f"{cpu:.2f}"
                )
    table_console(160).print(table)
    print_code_notes(records)


def _candidate(text: str) -> Variant:
    name, settings = scheduler_with_settings(text)
    schedulers.resolve(name, settings)
    return Variant(name, settings)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure settings of policies in a grid's cells.")
    parser.add_argument("candidates", nargs="+", metavar="SCHEDULER[:NAME=VALUE,...]")
    parser.add_argument("--grid", default="default", help="built-in, or a grid file")
    parser.add_argument("--cells", required=True, help="separated by commas")
    parser.add_argument("--rounds", type=int, default=2)
    add_record_options(parser, "runs/settings")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run_script(main)
