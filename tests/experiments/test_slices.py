"""P3's slices and ByteScheduler's tuning, from rows made up here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import slices

from byteprophet.errors import UserError
from byteprophet.report.plot import save

S = 1_000_000_000
P3: dict[str, Any] = {"scheduler": "p3", "samples": 10, "round": 1}
ROWS: list[dict[str, Any]] = [
    {**P3, "slice_bytes": 65536, "iteration_ns": [S, S, 9 * S]},
    {**P3, "slice_bytes": 4096, "iteration_ns": [2 * S]},
    {**P3, "slice_bytes": 4096, "iteration_ns": [4 * S], "round": 2},
    {
        "scheduler": "bytescheduler",
        "samples": 10,
        "round": 1,
        "tuning_ns": [S, 2 * S],
        "iteration_ns": [S, S],
        "trials": [
            {"settings": {"credit_bytes": 10**6}, "iteration_ns": S},
            {"settings": {"credit_bytes": 4 * 10**6}, "iteration_ns": 2 * S},
        ],
        "chosen": {"credit_bytes": 10**6},
    },
]


def test_figures() -> None:
    assert slices.slice_rates(ROWS) == {4096: [5.0, 2.5], 65536: [10.0]}
    assert slices.noise([S, S, S]) == 0
    assert slices.noise([S, 3 * S]) == pytest.approx(0.5)  # rates 3 and 1
    small, large, trials, noise = slices.lines(ROWS)
    assert small == "p3, slices of 4 KiB: 3.75 samples/s, 0.375 of the best"
    assert "1.000 of the best" in large
    assert "from 5.00 to 10.00 samples/s, 2.00 to 1" in trials
    assert "credits from 1 to 4 MB" in trials
    assert "33.3% while it tunes, 0.0% after; mean rate 0.667 of that after" in noise


def test_the_picture(tmp_path: Path) -> None:
    save(slices.draw(ROWS, "made up"), tmp_path / "slices.png")
    assert (tmp_path / "slices.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    "arguments", [["--slices", "64,half"], ["--rounds", "0"], ["--bandwidth", "unlimited"]]
)
def test_wrong_usage(arguments: list[str], tmp_path: Path) -> None:
    with pytest.raises(UserError):
        slices.main([*arguments, "--out", str(tmp_path), "--runs", str(tmp_path)])
    assert not list(tmp_path.iterdir())
