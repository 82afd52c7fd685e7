"""Costs of recording as ratios, from rows made up here; files as large as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import recorder

from byteprophet.errors import UserError
from byteprophet.timeline.events import Events, Origin, save_events
from byteprophet.timeline.read_events import load_events
from byteprophet.timeline.tables import TABLES, TableKind

MS = 1_000_000


def row(record: bool, times_ms: list[float], cpu_ms: float, number: int = 1) -> dict[str, Any]:
    return {
        "setup": "limited",
        "round": number,
        "record": record,
        "iteration_ns": [round(time * MS) for time in times_ms],
        "cpu_ns": round(cpu_ms * MS),
    }


ROWS = [
    row(False, [90, 90, 10, 20, 10], 4.0),
    row(True, [70, 70, 11, 22, 11], 5.0),
    row(True, [70, 70, 99, 99, 99], 9.0, number=2),  # its round has no other side
]


def test_ratios_are_of_the_same_round_without_the_first_iterations() -> None:
    ((times, processors),) = recorder.ratios(ROWS).values()
    assert times.value == pytest.approx(1.1)
    assert processors.value == pytest.approx(1.25)


def test_what_is_said_of_the_jobs() -> None:
    said = recorder.lines(ROWS[:2])
    assert "limited: iteration time 1.1000 of that without" in said[0]
    assert "does not hold" in said[0]
    assert said[-2].startswith("limited: recorder off: 10.00 ms (spread 0.00), processor 4.00 ms")
    assert said[-1].startswith("limited: recorder on: 11.00 ms")
    equal = recorder.lines([ROWS[0], {**ROWS[0], "record": True}])
    assert "holds" in equal[0]
    assert "does not" not in equal[0]


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.name)
def test_made_up_rows_are_a_table_s(table: TableKind, tmp_path: Path) -> None:
    rows = recorder.scattered(table, 5000)
    names = {number: str(number) for number in range(161)}
    save_events(tmp_path / "x", Events(table, Origin("worker-0", 0), rows, names))
    assert np.array_equal(load_events(tmp_path / "x").rows, rows)
    size_mb, took_s = recorder.file_figures(table, 5000)
    assert 5000 * 4 < 1e6 * size_mb < 5000 * rows.itemsize
    assert took_s > 0


@pytest.mark.parametrize(
    "arguments", [["--job-iterations", "2"], ["--rounds", "0"], ["--setups", "fast"]]
)
def test_wrong_usage(arguments: list[str], tmp_path: Path) -> None:
    with pytest.raises(UserError):
        recorder.main([*arguments, "--out", str(tmp_path), "--runs", str(tmp_path)])
    assert not list(tmp_path.iterdir())
