"""Recorded jobs of real layers: transfers and spans of the same iterations, and no others."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path

import numpy as np
import pytest

from byteprophet.job.fused_file import read_fused
from byteprophet.launcher import JobSpec, run_job
from byteprophet.observe.recording import STEPS, VARIABLE
from byteprophet.timeline.events import Events
from byteprophet.timeline.read_events import load_rank
from byteprophet.timeline.tables import SPANS, TRANSFERS, Kind, tensor_of

pytestmark = pytest.mark.job
WORKER = Path(__file__).with_name("recorded_worker.py")
LAYERS = ["0", "2", "3"]
PARAMETERS = [f"{layer}.{part}" for layer in LAYERS for part in ("weight", "bias")]


def run(folder: Path, arguments: tuple[int, ...], **environment: str) -> str | None:
    """Why the job failed, if it did."""
    spec = JobSpec(
        command=(sys.executable, str(WORKER), *map(str, arguments)),
        run_directory=folder,
        scheduler="p3",
        environment={"BYTEPROPHET_PROFILING": "0", **environment},
        timeout_s=200.0,
    )
    return run_job(spec, None).failed


def hashes(folder: Path) -> set[str]:
    lines = [
        line for path in folder.glob("logs/worker-*.log") for line in path.read_text().split("\n")
    ]
    return {line.split()[-1] for line in lines if line.startswith("parameters")}


def check(folder: Path, rank: int, iterations: Collection[int], last: int) -> None:
    """Both tables have ``iterations`` and no others; ``last`` is the job's last."""
    spans, transfers = load_rank(folder, SPANS, rank), load_rank(folder, TRANSFERS, rank)
    assert spans.lost == transfers.lost == 0
    fused = read_fused(folder)
    model = [n for n, name in transfers.names.items() if set(fused.of(name)) <= set(PARAMETERS)]
    of_model = transfers.rows[np.isin(tensor_of(transfers.rows), model)]
    of_model = of_model[of_model["priority"] < 0]
    assert set(of_model["iteration"].tolist()) == set(iterations)
    assert set(spans.rows["iteration"].tolist()) == set(iterations)
    for iteration in iterations:
        rows = spans.rows[spans.rows["iteration"] == iteration]
        assert named(spans, rows, Kind.FORWARD) == LAYERS
        assert sorted(named(spans, rows, Kind.BACKWARD)) == sorted(PARAMETERS)
        ready = {spans.names[r["name"]]: r["end_ns"] for r in rows if r["kind"] == Kind.BACKWARD}
        sent = of_model[of_model["iteration"] == iteration]
        came = []
        for number in np.unique(tensor_of(sent)).tolist():
            held = fused.of(transfers.names[number])
            came.extend(held)
            of_number = sent[tensor_of(sent) == number]
            assert np.all(of_number["ready_ns"] >= max(ready[name] for name in held))
        assert sorted(came) == sorted(PARAMETERS)
        if iteration == last:
            assert not named(spans, rows, Kind.ITERATION)
            continue
        (whole,) = rows[rows["kind"] == Kind.ITERATION]
        inside = rows[np.isin(rows["kind"], (Kind.FORWARD, Kind.BACKWARD))]
        assert whole["begin_ns"] <= inside["begin_ns"].min()
        assert inside["end_ns"].max() <= whole["end_ns"]
        if iteration > 1:  # until the order is agreed, step() updates all at once
            assert sorted(named(spans, rows, Kind.UPDATE)) == sorted(PARAMETERS)


def named(spans: Events, rows: np.ndarray, kind: Kind) -> list[str]:  # type: ignore[type-arg]
    return [spans.names[n] for n in rows["name"][rows["kind"] == kind].tolist()]


def test_what_is_recorded_changes_no_result(tmp_path: Path) -> None:
    assert run(tmp_path / "all", (8,), **{VARIABLE: "1"}) is None
    assert run(tmp_path / "window", (8,), **{VARIABLE: "1", STEPS: "3:6"}) is None
    assert run(tmp_path / "script", (12, 2, 5, 7, 9)) is None
    assert run(tmp_path / "nothing", (8,)) is None
    for rank in range(2):
        check(tmp_path / "all", rank, range(1, 9), last=8)
        check(tmp_path / "window", rank, range(3, 6), last=8)
        check(tmp_path / "script", rank, [3, 4, 5, 8, 9], last=12)
    assert not (tmp_path / "nothing" / "events").exists()
    same = [hashes(tmp_path / name) for name in ("all", "window", "nothing")]
    assert same[0] == same[1] == same[2]
    assert len(same[0]) == 1


def test_what_was_recorded_survives_both_signals(tmp_path: Path) -> None:
    """Rank 1 is killed; rank 0, which is done, gets the launcher's SIGTERM."""
    failed = run(tmp_path / "run", (20,), BYTEPROPHET_TEST_RANK_1_FAILS="1", **{VARIABLE: "1"})
    assert failed is not None
    assert "worker-1" in failed
    terminated, killed = (load_rank(tmp_path / "run", SPANS, rank) for rank in range(2))
    assert (terminated.whole, killed.whole) == (True, False)
    iterations = terminated.rows["iteration"]
    assert set(iterations.tolist()) == set(range(1, 21))
    assert len(named(terminated, terminated.rows, Kind.UPDATE)) == 1 + 19 * len(PARAMETERS)
    assert set(killed.rows["iteration"].tolist()) == set(range(1, 21))
