"""How soon profile and plan follow a new batch size, from a log made up here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import batch_change
import pytest

from byteprophet.errors import UserError
from byteprophet.report.plot import save

S = 1_000_000_000
# Ten iterations of a second, then twenty of half a second with half the batch.
TIMES = [[S] * 10 + [S // 2] * 20, [S] * 10 + [S // 2 - 1000] * 20]
ROW: dict[str, Any] = {
    "round": 1,
    "changed_at": 10,
    "compute_ns": [900_000_000, 450_000_000],
    "batch_size": [64, 32],
    "starts_ns": batch_change.starts_ns(TIMES, 100 * S),
}


def profile(worker: int, at_s: float, compute_ns: int) -> dict[str, Any]:
    return {
        "event": "profile",
        "worker": f"worker-{worker}",
        "monotonic_ns": round((100 + at_s) * S),
        "forward_ns": compute_ns // 3,
        "backward_ns": compute_ns * 2 // 3,
    }


def plan(number: int, at_s: float, at_iteration: int, adopted_by: int = 2) -> list[dict[str, Any]]:
    at_ns = round((100 + at_s) * S)
    made = {"event": "plan", "number": number, "monotonic_ns": at_ns, "at_iteration": at_iteration}
    adopted = [
        {"event": "adopted", "plan": number, "worker": f"worker-{worker}", "monotonic_ns": at_ns}
        for worker in range(adopted_by)
    ]
    return [made, *adopted]


EVENTS = [
    profile(0, 5.0, 900_000_000),
    profile(1, 5.0, 900_000_000),
    *plan(1, 5.1, 8),
    profile(1, 10.2, 880_000_000),  # an old one that is late
    profile(1, 12.2, 455_000_000),
    *plan(2, 12.3, 18),  # knows one of two
    profile(0, 13.2, 452_000_000),
    *plan(3, 13.3, 20, adopted_by=1),
    *plan(4, 13.9, 23),
]


def test_the_last_workers_profile_and_the_first_plan_that_knows_it() -> None:
    # Updates 10 to 16 had begun at 13.2 s; iteration 23 is update 22.
    found = batch_change.followed(EVENTS, ROW)
    assert found == {"profile_iterations": 7, "plan_iterations": 12}
    told = batch_change.line({**ROW, **found})
    assert "64 to 32" in told
    assert "profile after 7 iterations, plan after 12 iterations (at most 20)" in told


def test_what_did_not_follow_is_said(tmp_path: Path) -> None:
    found = batch_change.followed(EVENTS[:6], ROW)
    assert found == {"profile_iterations": None, "plan_iterations": None}
    assert "profile did not follow" in batch_change.line({**ROW, **found})
    without = batch_change.followed(EVENTS[:-3], ROW)
    assert without == {"profile_iterations": 7, "plan_iterations": None}
    rows = [{**ROW, **found}, {**ROW, **batch_change.followed(EVENTS, ROW)}]
    save(batch_change.draw(rows), tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000


@pytest.mark.parametrize("arguments", [["--after", "0"], ["--bandwidth", "unlimited"]])
def test_wrong_usage(arguments: list[str], tmp_path: Path) -> None:
    with pytest.raises(UserError):
        batch_change.main([*arguments, "--out", str(tmp_path), "--runs", str(tmp_path)])
    assert not list(tmp_path.iterdir())
