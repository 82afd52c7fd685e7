"""When a record of a grid answers for a job: its fingerprint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from byteprophet.bench.grid import Cell, Grid
from byteprophet.bench.grid_jobs import Variant, fingerprint, plan_of, prepare_cell
from byteprophet.workload import load

CELL = Cell("resnet18", "1gbit", workers=3)


def made_of(cell: Cell, directory: Path) -> str:
    prepared = prepare_cell(cell, directory)
    variant = Variant("prophet")
    plan = plan_of(Grid("g", (cell,)), "base", prepared.case(variant))
    return fingerprint(prepared, variant, plan)


def test_a_slow_worker_makes_another_job_and_a_name_does_not(tmp_path: Path) -> None:
    plain = made_of(CELL, tmp_path)
    assert made_of(replace(CELL, name="other"), tmp_path) == plain
    slow = made_of(replace(CELL, slow_worker="500mbit"), tmp_path)
    slower = made_of(replace(CELL, slow_worker="100mbit"), tmp_path)
    assert len({plain, slow, slower}) == 3


def test_a_runtime_and_its_settings_make_other_jobs(tmp_path: Path) -> None:
    prepared = prepare_cell(CELL, tmp_path)
    variants = [
        Variant("prophet"),
        *(Variant.of_runtime("ddp", {"bucket_cap_mb": size}) for size in (1, 4)),
        Variant.of_runtime("fsdp2", {}),
        Variant("prophet", environment={"BYTEPROPHET_VAN": "sockets"}),
    ]
    found = set()
    for variant in variants:
        case = prepared.case(variant)
        assert (case.name, case.settings) == (variant.name, variant.settings)
        assert case.bandwidth_bps == 1_000_000_000
        found.add(fingerprint(prepared, variant, plan_of(Grid("g", (CELL,)), "base", case)))
    assert len(found) == len({variant.label for variant in variants}) == len(variants)
    # A default that is spelled out is the same job.
    spelt, default = variants[1], Variant.of_runtime("ddp", {})
    plan = plan_of(Grid("g", (CELL,)), "base", prepared.case(default))
    assert fingerprint(prepared, default, plan) in found
    assert spelt.label == "ddp[bucket_cap_mb=1]"


def test_a_record_says_which_variant() -> None:
    for variant in (
        Variant("p3", {"a": 1}, tuner=True),
        Variant.of_runtime("ddp", {"b": 2}),
        Variant("p3", environment={"X": "1"}),
    ):
        record = {
            "runtime": variant.runtime,
            "scheduler": variant.told_scheduler,
            "settings": dict(variant.settings),
            "tuner": variant.tuner,
            "environment": dict(variant.environment),
        }
        assert Variant.of_record(record) == variant
    older = {"scheduler": "p3", "settings": {}, "tuner": False}
    assert Variant.of_record(older) == Variant("p3")


def test_a_cell_keeps_its_workload_whatever_else_is_prepared_there(tmp_path: Path) -> None:
    """Another grid, slowed, has cells of the same names; others differ in what files lack."""
    cells = [replace(CELL, name="x 1"), replace(CELL, workload="resnet50", name="x-1")]
    prepared = [prepare_cell(cell, tmp_path) for cell in (*cells, cells[0].slowed(3))]
    for one in prepared:
        assert load(str(one.path)) == one.workload
    assert prepare_cell(cells[0], tmp_path) == prepared[0]
    assert len(list(tmp_path.iterdir())) == 3


def test_the_last_worker_is_the_slow_one(tmp_path: Path) -> None:
    case = prepare_cell(replace(CELL, slow_worker="500mbit"), tmp_path).case(Variant("p3"))
    assert case.worker_bandwidth_bps == {2: 500_000_000}
    assert case.bandwidth_bps == 1_000_000_000
    assert case.slowest_bps == 500_000_000
