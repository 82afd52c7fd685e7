"""Which jobs a phase has, and in what order."""

from __future__ import annotations

from pathlib import Path

import pytest

from byteprophet.bench.grid import Cell, Grid
from byteprophet.bench.grid_jobs import Job, PreparedCell, Variant, plan_of, prepare_cell
from byteprophet.bench.grid_phases import (
    CONFIRMED,
    baselines,
    default_schedulers,
    phase_jobs,
)
from byteprophet.engine import rank_settings, tuning_grid
from byteprophet.errors import UserError

NAMES = ["stock", "p3", "bytescheduler", "prophet"]


@pytest.fixture
def cells(tmp_path: Path) -> list[PreparedCell]:
    made = (Cell("resnet18", 1.0), Cell("resnet18", 2.0, tuning=True))
    return [prepare_cell(cell, tmp_path) for cell in made]


def labels(jobs: list[Job]) -> list[str]:
    return [f"{job.round} {job.cell.link:g} {job.variant.label}" for job in jobs]


def test_base_takes_turns_and_turns_back(cells: list[PreparedCell]) -> None:
    jobs = phase_jobs("base", cells, ["stock", "p3", "prophet"], 2)
    assert labels(jobs) == [
        *("1 1 stock", "1 1 p3", "1 1 prophet", "1 2 stock", "1 2 p3", "1 2 prophet"),
        *("2 1 prophet", "2 1 p3", "2 1 stock", "2 2 prophet", "2 2 p3", "2 2 stock"),
    ]


def predicted_ns(cell: PreparedCell, scheduler: str) -> dict[str, int]:
    place = cell.cell
    rate_bps = place.bandwidth_bps(cell.workload)
    ranked = rank_settings(cell.workload, scheduler, place.workers, place.servers, rate_bps)
    return {Variant(scheduler, settings).label: time_ns for settings, time_ns in ranked}


def test_tuned_confirms_the_best_of_each_baseline_beside_prophet(
    cells: list[PreparedCell],
) -> None:
    jobs = phase_jobs("tuned", cells, NAMES, 1)
    for cell in cells:
        variants = [job.variant for job in jobs if job.cell is cell.cell]
        assert [variant.scheduler for variant in variants] == [
            *["p3"] * CONFIRMED,
            *["bytescheduler"] * CONFIRMED,
            "prophet",
        ]
        assert variants[-1].settings == {}
        for name in ("p3", "bytescheduler"):
            times_ns = predicted_ns(cell, name)
            chosen = [v.label for v in variants if v.scheduler == name]
            assert len(set(chosen)) == CONFIRMED
            others = [time_ns for label, time_ns in times_ns.items() if label not in chosen]
            assert max(times_ns[label] for label in chosen) <= 1.006 * min(others)


def test_of_what_is_as_good_the_coarsest(tmp_path: Path) -> None:
    """Nothing is sent while there is time to spare: all settings are equally good."""
    cell = prepare_cell(Cell("resnet18", 0.01), tmp_path)
    jobs = phase_jobs("tuned", [cell], ["fifo"], 1)
    sizes = [job.variant.settings["partition_bytes"] for job in jobs[:CONFIRMED]]
    assert sizes == sorted((s["partition_bytes"] for s in tuning_grid("fifo")), reverse=True)[:3]


def test_single_has_the_same_settings_in_all_cells_and_four_megabytes_twice(
    cells: list[PreparedCell],
) -> None:
    jobs = phase_jobs("single", cells, NAMES, 1)
    first, second = ([job.variant for job in jobs if job.cell is cell.cell] for cell in cells)
    assert first == second
    found = {variant.label for variant in first}
    assert "bytescheduler[credit_bytes=8388608,partition_bytes=4194304]" in found
    assert "p3[outstanding_messages=2,partition_bytes=4194304]" in found
    assert "prophet" in found
    for name in ("p3", "bytescheduler"):
        times_ns = [predicted_ns(cell, name) for cell in cells]
        products = {label: times_ns[0][label] * times_ns[1][label] for label in times_ns[0]}
        best = min(products, key=products.__getitem__)
        assert any(
            products[v.label] <= 1.011 * products[best] for v in first if v.scheduler == name
        )


def test_tuning_is_of_the_cells_that_the_grid_marks(cells: list[PreparedCell]) -> None:
    jobs = phase_jobs("tuning", cells, NAMES, 1)
    assert labels(jobs) == ["1 2 bytescheduler+tuner", "1 2 prophet"]
    with pytest.raises(UserError, match="marks no cell"):
        phase_jobs("tuning", cells[:1], NAMES, 1)


def test_what_has_nothing_to_tune_is_no_baseline() -> None:
    assert set(baselines()) <= set(default_schedulers())
    assert not {"stock", "prophet"} & set(baselines())


def test_all_iterations_of_the_tuning_phase_count(cells: list[PreparedCell]) -> None:
    grid = Grid("g", tuple(cell.cell for cell in cells))
    for job in phase_jobs("tuning", cells, NAMES, 1):
        case = cells[1].case(job.variant)
        assert (case.tuning is not None) == job.variant.tuner
        assert plan_of(grid, "tuning", case).iterations + case.tune_iterations == 300
        assert plan_of(grid, "tuning", case).warmup_iterations == grid.warmup_iterations


@pytest.mark.parametrize(
    ("phase", "names", "rounds", "named"),
    [
        ("first", NAMES, 1, "--phase 'first'"),
        ("base", NAMES, 0, "--rounds 0"),
        ("base", ["fastest"], 1, "fastest"),
    ],
)
def test_bad_requests_are_named(
    phase: str, names: list[str], rounds: int, named: str, cells: list[PreparedCell]
) -> None:
    with pytest.raises(UserError, match=named):
        phase_jobs(phase, cells, names, rounds)
