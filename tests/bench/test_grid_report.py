"""Which records a report counts. Figures are tested in test_grid_figures.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from byteprophet.bench.grid import Cell, Grid
from byteprophet.bench.grid_jobs import Variant, fingerprint, plan_of, prepare_cell
from byteprophet.bench.grid_report import make_report
from byteprophet.bench.grid_store import Record, Store

GRID = Grid("mine", (Cell("resnet18", 1.0),))
MEASURED = {
    "iteration_ns": [200],
    "bound_ns": 100,
    "machine_cpu_fraction": 0.5,
    "saturated_fraction": 0.0,
    "job_cpu_fraction": 0.5,
    "parameters_sha256": "same",
}


def record(directory: Path, name: str, number: int, **members: Any) -> Record:
    """What a job of the grid's cell leaves."""
    prepared, variant = prepare_cell(GRID.cells[0], directory), Variant(name)
    plan = plan_of(GRID, "base", prepared.case(variant))
    return {
        "phase": "base",
        "cell": GRID.cells[0].name,
        "variant": variant.label,
        "round": number,
        "scheduler": name,
        "settings": {},
        "tuner": False,
        "fingerprint": fingerprint(prepared, variant, plan),
        "code": "c",
        **members,
    }


def test_jobs_count_as_failed_whose_last_record_failed(tmp_path: Path) -> None:
    def of(name: str, number: int, **members: Any) -> Record:
        return record(tmp_path, name, number, **members)

    store = Store(tmp_path)
    for each in (
        of("prophet", 1, failed="it was slow"),
        of("prophet", 1, **MEASURED),  # the same job again
        of("prophet", 2, **MEASURED),
        of("prophet", 2, failed="it was slow"),  # in other code
        of("stock", 1, failed="it was slow"),
        of("stock", 1, failed="it was slow"),
        of("stock", 2, failed="it was slow", cell="of another grid"),
        of("stock", 2, failed="it was slow", fingerprint="of other settings"),
    ):
        store.add(each)
    store.close()
    report = make_report(GRID, tmp_path)
    assert report["failed"] == 2
    assert report["jobs"] == 2
