"""``byteprophet bench --grid``: measures a phase of a grid, then reports all that is there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from byteprophet.bench.grid import Grid, load_grid
from byteprophet.bench.grid_phases import default_schedulers
from byteprophet.bench.grid_report import make_report
from byteprophet.bench.grid_run import namespaces_for, run_phase
from byteprophet.report.console import table_console
from byteprophet.report.grid import cells_table, notes, targets_table
from byteprophet.report.grid_plot import draw_ratios
from byteprophet.report.plot import save

REPORT, PICTURE = "report.json", "ratios.png"


def bench_grid(
    name_or_path: str,
    slowed: int,
    phase: str,
    names: Sequence[str] | None,
    rounds: int,
    out: Path | None,
    report_only: bool,
    json_file: Path | None,
) -> int:
    """Runs what is missing of the phase unless ``report_only``, then reports. Exit status."""
    grid = load_grid(name_or_path).slowed(slowed)
    directory = out or Path("runs") / f"grid-{grid.name}"
    if not report_only:
        progress = Console(stderr=True, highlight=False, markup=False)
        run_phase(
            grid,
            phase,
            names or default_schedulers(),
            rounds,
            directory,
            namespaces_for(grid),
            lambda text: progress.print(f"bench: {text}", soft_wrap=True),
        )
    _report(grid, directory, json_file)
    return 0


def _report(grid: Grid, directory: Path, json_file: Path | None) -> None:
    report = make_report(grid, directory)
    text = json.dumps(report, indent=2) + "\n"
    for path in (directory / REPORT, json_file):
        if path is not None:
            path.write_text(text, encoding="utf-8")
    save(draw_ratios(report), directory / PICTURE)
    console = table_console(160)
    console.print(cells_table(report))
    console.print(targets_table(report))
    for line in notes(report):
        console.print(line, soft_wrap=True)
    console.print(f"saved: {directory / REPORT}, {directory / PICTURE}", soft_wrap=True)
