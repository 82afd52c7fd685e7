"""Costs as ratios, and the time until the first profile, from rows made up here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import overhead
import pytest

from byteprophet.errors import UserError
from byteprophet.report.plot import save

S = 1_000_000_000


def row(variant: str, times_s: list[float], number: int = 1, **fields: Any) -> dict[str, Any]:
    times_ns = [round(time * S) for time in times_s]
    workload = "resnet50"
    return {
        "workload": workload,
        "variant": variant,
        "round": number,
        "iteration_ns": times_ns,
        **fields,
    }


def profiled(first_s: float | None, number: int = 1) -> dict[str, Any]:
    first_ns = None if first_s is None else round(first_s * S)
    return {"number": number, "iterations": 6, "first_ns": first_ns}


NOTHING = [9.0, 9.0, 1.0, 2.0, 1.0, 1.0]
# The profile comes in the fourth iteration: two are compared while it is made, two after.
ROWS = [
    row(overhead.NOTHING, NOTHING),
    row("profiling", [9.0, 9.0, 1.5, 3.0, 1.1, 1.1], profile=profiled(20.0)),
    row("record", [5.0, 5.0, 2.0, 2.0, 2.0, 2.0]),
    row("record", [5.0, 5.0, 8.0, 8.0, 8.0, 8.0], number=2),  # its round has no base
]


def test_ratios_are_of_the_same_iterations_of_the_same_round() -> None:
    assert overhead.begun(ROWS[1]) == 4
    found = overhead.ratios(ROWS)
    assert {name: figure.value for (_, name), figure in found.items()} == pytest.approx(
        {"profiling": 1.3, "while profiling": 1.5, "after profiling": 1.1, "record": 2.0}
    )
    low, high = found["resnet50", "while profiling"].interval
    assert low < 1.5 < high


def test_a_profile_that_was_replaced_does_not_tell_when_the_first_was_there() -> None:
    replaced = row("profiling", NOTHING, profile=profiled(None, number=2))
    assert overhead.begun(replaced) == 0
    assert "while profiling" not in {name for _, name in overhead.ratios([ROWS[0], replaced])}
    assert "no job" in overhead.profile_lines([replaced])[0]
    (told,) = overhead.profile_lines([*ROWS, replaced])
    assert "after 20.0 s, of 6 iterations, medians of 1 jobs (paper: 9.5 s" in told


def test_the_picture(tmp_path: Path) -> None:
    save(overhead._draw(overhead.ratios(ROWS), []), tmp_path / "overhead.png")
    assert (tmp_path / "overhead.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    "arguments", [["--job-iterations", "2"], ["--rounds", "0"], ["--schedulers", "stock"]]
)
def test_wrong_usage(arguments: list[str], tmp_path: Path) -> None:
    with pytest.raises(UserError):
        overhead.main([*arguments, "--out", str(tmp_path), "--runs", str(tmp_path)])
    assert not list(tmp_path.iterdir())
