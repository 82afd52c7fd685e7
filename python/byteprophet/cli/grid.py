"""``byteprophet bench --grid``: measures a phase of a grid, then reports all that is there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from byteprophet.bench.grid import Grid, load_grid
from byteprophet.bench.grid_phases import default_schedulers
from byteprophet.bench.grid_report import make_report
from byteprophet.bench.grid_run import namespaces_for, run_phase
from byteprophet.bench.grid_store import FILE as JOBS
from byteprophet.errors import UserError
from byteprophet.report.console import progress_of, table_console
from byteprophet.report.grid import cells_table, notes, targets_table
from byteprophet.report.grid_plot import draw_ratios
from byteprophet.report.plot import save
from byteprophet.whole_files import write_whole

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
    own = [(directory / name).resolve() for name in (JOBS, PICTURE)]
    if json_file is not None and json_file.resolve() in own:
        raise UserError(f"--json {json_file}: is a file of the grid: choose another name")
    if not report_only:
        run_phase(
            grid,
            phase,
            names or default_schedulers(),
            rounds,
            directory,
            namespaces_for(grid),
            progress_of("bench"),
        )
    _report(grid, directory, json_file)
    return 0


def _report(grid: Grid, directory: Path, json_file: Path | None) -> None:
    report = make_report(grid, directory)
    console = table_console(160)
    console.print(cells_table(report))
    console.print(targets_table(report))
    for line in notes(report):
        console.print(line, soft_wrap=True)
    text = json.dumps(report, indent=2) + "\n"
    for path in (directory / REPORT, json_file):
        if path is not None:
            write_whole(path, text)
    save(draw_ratios(report), directory / PICTURE)
    console.print(f"saved: {directory / REPORT}, {directory / PICTURE}", soft_wrap=True)
