"""Which jobs are replayed, and what is said of errors, from rows made up here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import replays

from byteprophet import schedulers
from byteprophet.bench.runtimes import BYTEPS, RUNTIMES
from byteprophet.errors import UserError


def row(replayed_ms: float, daydream_ms: float) -> dict[str, Any]:
    return {
        "job": "resnet18-fifo-200mbit-2w1s",
        "round": 1,
        "measured_ns": 100_000_000,
        "replayed_ns": round(replayed_ms * 1e6),
        "daydream_ns": round(daydream_ms * 1e6),
        "machine_cpu_fraction": 0.25,
    }


def test_the_jobs_are_all_kinds_of_jobs() -> None:
    kinds = {*schedulers.names, *RUNTIMES} - {BYTEPS}
    assert {job.runs_under for job in replays.JOBS} == kinds
    assert {job.workers for job in replays.JOBS} == {2, 3, 4}
    assert {job.servers for job in replays.JOBS} == {1, 2}
    assert len({job.bandwidth for job in replays.JOBS}) >= 3
    assert len({job.label for job in replays.JOBS}) == len(replays.JOBS) >= 12


def test_errors_are_judged_by_mean_and_worst() -> None:
    rows = [row(101, 90), row(97, 130), row(100, 100)]
    ours = replays.errors(rows, "replayed_ns")
    assert ours == pytest.approx([0.01, -0.03, 0])
    said = replays.lines(ours, replays.errors(rows, "daydream_ns"))
    assert said[0] == "3 replays: error mean 1.3%, worst 3.0% (at most 2% and 5%: holds)"
    assert said[1] == "Daydream's model: mean 13.3%, worst 30.0%"
    assert "does not hold" in replays.lines([0.0, 0.0, 0.0, -0.051], [0.0])[0]
    assert "does not hold" in replays.lines([0.021], [0.0])[0]


def test_the_table_has_a_line_per_job(capsys: pytest.CaptureFixture[str]) -> None:
    replays.show([row(101, 90)])
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "fifo" in line)
    assert line.split()[1:] == ["1", "100.0", "101.0", "+1.0%", "-10.0%", "25%"]


@pytest.mark.parametrize(
    "arguments", [["--jobs", "resnet18"], ["--rounds", "0"], ["--job-iterations", "9"]]
)
def test_wrong_usage(arguments: list[str], tmp_path: Path) -> None:
    with pytest.raises(UserError):
        replays.main([*arguments, "--out", str(tmp_path), "--runs", str(tmp_path)])
    assert not list(tmp_path.iterdir())
