"""Makes the report of ``byteprophet bench --grid`` from the records in a directory.

Plain data (docs/formats.md); ``report/grid.py`` prints it and ``report/grid_plot.py`` draws it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from byteprophet.bench.grid import Grid
from byteprophet.bench.grid_figures import Figures
from byteprophet.bench.grid_jobs import PreparedCell, Variant, code_version, fingerprint, plan_of
from byteprophet.bench.grid_store import FILE, Key, Record, key_of, machines_of, read_records
from byteprophet.errors import UserError

SCHEMA = 1

_TOLD = ("scheduler", "settings", "tuner")
_MEASURED = (
    "iteration_ns",
    "bound_ns",
    "machine_cpu_fraction",
    "saturated_fraction",
    "job_cpu_fraction",
    "parameters_sha256",
)


def make_report(grid: Grid, directory: Path) -> dict[str, Any]:
    """The report of the jobs of ``grid`` that are recorded in ``directory``.

    UserError if there are none.
    """
    records = read_records(directory)
    counted = select(grid, records)
    if not counted:
        raise UserError(f"{directory}: no finished jobs of grid {grid.name}; run it first")
    figures = Figures([cell.name for cell in grid.cells], counted)
    return {
        "schema": SCHEMA,
        "grid": grid.name,
        "cells_in_grid": len(grid.cells),
        "jobs": len(counted),
        "failed": sum("failed" in record for record in _last(grid, records).values()),
        "code": sorted({record["code"] for record in counted}),
        "code_now": code_version(),
        "machines": machines_of(counted),
        "cells": figures.cells(),
        "targets": figures.targets(),
    }


def select(grid: Grid, records: Sequence[Record]) -> list[Record]:
    """The last record of each job, without failed jobs and those that the grid has redefined."""
    finished = [record for record in records if "failed" not in record]
    return list(_last(grid, finished).values())


def _last(grid: Grid, records: Sequence[Record]) -> dict[Key, Record]:
    """The last record of each job that the grid has, failed or not."""
    cells = {cell.name: cell for cell in grid.cells}
    prepared: dict[str, PreparedCell] = {}
    found: dict[Key, Record] = {}
    for record in records:
        cell = cells.get(record["cell"])
        if cell is None:
            continue
        for field in _TOLD if "failed" in record else (*_TOLD, *_MEASURED):
            if field not in record:
                raise UserError(
                    f"{FILE}: {', '.join(map(str, key_of(record)))}: {field} is missing"
                )
        if cell.name not in prepared:
            prepared[cell.name] = PreparedCell(cell, cell.load_workload(), Path())
        if record["fingerprint"] == _expected(grid, prepared[cell.name], record):
            found[key_of(record)] = record
    return found


def _expected(grid: Grid, prepared: PreparedCell, record: Record) -> str | None:
    """The fingerprint that the record's job has today; None if it cannot run any more."""
    variant = Variant.of_record(record)
    try:
        plan = plan_of(grid, record["phase"], prepared.case(variant))
        return fingerprint(prepared, variant, plan)
    except UserError:
        return None
