"""Costs of the live view as ratios, from rows made up here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import watching

from byteprophet.errors import UserError

MS = 1_000_000


def row(side: str, times_ms: list[float], cpu_ms: float, number: int = 1) -> dict[str, Any]:
    return {
        "setup": "limited",
        "round": number,
        "side": side,
        "iteration_ns": [round(time * MS) for time in times_ms],
        "cpu_ns": round(cpu_ms * MS),
    }


ROWS = [
    row(watching.OFF, [90, 90, 10, 20, 10], 4.0),
    row(watching.ALONE, [70, 70, 10, 20, 10], 4.0),
    {**row(watching.WATCHED, [70, 70, 11, 22, 11], 5.0), "viewer_cpu_fraction": 0.02},
    row(watching.WATCHED, [70, 70, 99, 99, 99], 9.0, number=2),  # its round has no other side
]


def test_ratios_are_of_the_same_round_without_the_first_iterations() -> None:
    found = watching.ratios(ROWS)
    assert set(found) == {("limited", watching.ALONE), ("limited", watching.WATCHED)}
    times, processors = found["limited", watching.WATCHED]
    assert times.value == pytest.approx(1.1)
    assert processors.value == pytest.approx(1.25)
    assert found["limited", watching.ALONE][0].value == pytest.approx(1.0)


def test_what_is_said_of_the_jobs() -> None:
    said = watching.lines(ROWS)
    assert "limited, alone: iteration time 1.0000" in said[0]
    assert "(at most 1.005: holds, but more rounds may say otherwise)" in said[0]
    assert "does not hold" in said[2]
    assert said[-1] == "the viewer takes 2.00% of a core"


def test_an_interval_below_the_limit_leaves_nothing_open() -> None:
    steady = [row(side, [90, 90, 10, 10, 10], 4.0) for side in (watching.OFF, watching.WATCHED)]
    assert "(at most 1.005: holds)" in watching.lines(steady)[0]


def test_wrong_options(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--setups nothing"):
        watching.main(["--setups", "nothing", "--out", str(tmp_path)])
    with pytest.raises(UserError, match="--job-iterations"):
        watching.main(["--job-iterations", "2", "--out", str(tmp_path)])
