"""Which jobs a phase has, and in what order. The engine's predictions are given by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from byteprophet import schedulers
from byteprophet.bench.grid import Cell
from byteprophet.bench.grid_jobs import Job, PreparedCell, prepare_cell
from byteprophet.bench.grid_phases import (
    CONFIRMED,
    baselines,
    candidates,
    default_schedulers,
    phase_jobs,
)
from byteprophet.errors import UserError

NAMES = ["stock", "p3", "bytescheduler", "prophet"]


@pytest.fixture
def cells(tmp_path: Path) -> list[PreparedCell]:
    made = (Cell("resnet18", 1.0), Cell("resnet18", 2.0, tuning=True))
    return [prepare_cell(cell, tmp_path) for cell in made]


def far_from(best: Mapping[str, int]) -> int:
    """1 MiB partitions are predicted to be best, and two of them under a credit."""
    size = best["partition_bytes"]
    return abs(size - 2**20) + abs(best.get("credit_bytes", 2 * size) - 2 * size) + 1


def predict(
    _cell: PreparedCell, _scheduler: str, settings: Sequence[Mapping[str, int]]
) -> list[float]:
    return [float(far_from(each)) for each in settings]


def never(
    _cell: PreparedCell, _scheduler: str, _settings: Sequence[Mapping[str, int]]
) -> list[float]:
    raise AssertionError("this phase needs no prediction")


def labels(jobs: list[Job]) -> list[str]:
    return [f"{job.round} {job.cell.link:g} {job.variant.label}" for job in jobs]


def test_base_takes_turns_and_turns_back(cells: list[PreparedCell]) -> None:
    jobs = phase_jobs("base", cells, ["stock", "p3", "prophet"], 2, never)
    assert labels(jobs) == [
        *("1 1 stock", "1 1 p3", "1 1 prophet", "1 2 stock", "1 2 p3", "1 2 prophet"),
        *("2 1 prophet", "2 1 p3", "2 1 stock", "2 2 prophet", "2 2 p3", "2 2 stock"),
    ]


def test_tuned_confirms_the_best_of_each_baseline_beside_prophet(
    cells: list[PreparedCell],
) -> None:
    jobs = phase_jobs("tuned", cells[:1], NAMES, 1, predict)
    assert len(jobs) == 2 * CONFIRMED + 1
    assert labels(jobs)[0] == "1 1 p3[partition_bytes=1048576]"
    assert (
        labels(jobs)[CONFIRMED] == "1 1 bytescheduler[credit_bytes=2097152,partition_bytes=1048576]"
    )
    assert labels(jobs)[-1] == "1 1 prophet"


def test_single_has_the_same_settings_in_all_cells_and_four_megabytes_twice(
    cells: list[PreparedCell],
) -> None:
    jobs = phase_jobs("single", cells, NAMES, 1, predict)
    first, second = ([job.variant for job in jobs if job.cell is cell.cell] for cell in cells)
    assert first == second
    found = {variant.label for variant in first}
    assert "bytescheduler[credit_bytes=8388608,partition_bytes=4194304]" in found
    assert "p3[outstanding_messages=2,partition_bytes=4194304]" in found
    assert "p3[partition_bytes=1048576]" in found
    assert "prophet" in found


def test_tuning_is_of_the_cells_that_the_grid_marks(cells: list[PreparedCell]) -> None:
    jobs = phase_jobs("tuning", cells, NAMES, 1, never)
    assert labels(jobs) == ["1 2 bytescheduler+tuner", "1 2 prophet"]


@pytest.mark.parametrize("name", baselines())
def test_candidates_are_accepted_by_their_scheduler(name: str) -> None:
    assert len(candidates(name)) >= CONFIRMED
    for settings in candidates(name):
        resolved, partition_bytes = schedulers.resolve(name, settings)
        assert resolved.items() >= settings.items()
        assert partition_bytes % 4096 == 0  # BytePS would round it up


def test_what_has_nothing_to_tune_is_no_baseline() -> None:
    assert set(baselines()) <= set(default_schedulers())
    assert not {"stock", "prophet"} & set(baselines())


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
        phase_jobs(phase, cells, names, rounds, never)
