"""The experiment with a link that steps: its figures and its picture, from rows made up here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import step

from byteprophet.bench.result import payload_bps
from byteprophet.errors import UserError
from byteprophet.report.plot import save

S = 1_000_000_000


def row(estimates: list[list[list[int]]], **fields: Any) -> dict[str, Any]:
    iterations = [[k * S, S if k < 0 else S // 2] for k in range(-12, 12)]
    return {
        "workload": "resnet50",
        "scheduler": "prophet",
        "before_bps": 1 * S,
        "after_bps": 3 * S,
        "estimates": estimates,
        "iterations": iterations,
        "settled_ns": S // 2,
        "followed_ns": S * 11 // 20,
        **fields,
    }


def worker(due_bps: float) -> list[list[int]]:
    """Always busy; ``due_bps`` is its estimate in the first row two seconds after the step."""
    rates = {-4: S, 0: S, 1: 2 * S, 2: due_bps, 3: 9 * S}
    return [[t * S, (t + 10) * S, round(bps)] for t, bps in rates.items()]


def test_the_error_is_the_worst_workers_after_two_seconds_of_traffic() -> None:
    truth = payload_bps(3 * S)
    assert truth is not None
    estimates = [worker(truth * 1.02), worker(truth * 0.9)]
    assert step.estimate_error(row(estimates)) == pytest.approx(-0.1)
    # Idle half of the time: two seconds of traffic are over twice as late.
    rare = [[t * 2, busy, bps] for t, busy, bps in worker(truth)]
    assert step.estimate_error(row([rare])) == pytest.approx(0, abs=1e-6)


def test_too_little_traffic_is_said() -> None:
    assert step.estimate_error(row([[[-S, S, S], [S, 2 * S, S]]])) is None
    assert "too little traffic" in step._line(row([[[-S, S, S], [S, 2 * S, S]]]))


def test_the_picture(tmp_path: Path) -> None:
    rows = [row([worker(2.8 * S)]), row([worker(0.9 * S)], before_bps=3 * S, after_bps=1 * S)]
    save(step.draw(rows), tmp_path / "step.png")
    assert (tmp_path / "step.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    "arguments",
    [
        ["--rates", "1gbit"],
        ["--rates", "1gbit,unlimited"],
        ["--schedulers", "stock"],
        ["--schedulers", "nobody"],
        ["--iterations", "5"],
    ],
)
def test_wrong_usage(arguments: list[str], tmp_path: Path) -> None:
    with pytest.raises(UserError):
        step.main([*arguments, "--out", str(tmp_path), "--runs", str(tmp_path)])
    assert not list(tmp_path.iterdir())
