"""Two runs beside each other, and what is said of them as plain data."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from byteprophet.diagnose import Diagnosis, compare, diagnose
from byteprophet.diagnose.plain import as_json
from byteprophet.measure.run import Run
from byteprophet.report.diagnosis import diagnosis_tables
from byteprophet.timeline.events import Events

from .hand_made import CONFIG, MS, collective_job, ps_job, save_run, stock_job


def saved(directory: Path, events: object) -> Diagnosis:
    save_run(directory, events)  # type: ignore[arg-type]
    return diagnose(Run(directory))


def test_changes_sum_up(tmp_path: Path) -> None:
    this, other = saved(tmp_path / "this", ps_job()), saved(tmp_path / "other", stock_job())
    found = compare(this, other)
    assert (found.ratio, found.ratio_low, found.ratio_high) == pytest.approx((1, 1, 1))
    parts = {row.what: ((row.this or 0) / MS, (row.other or 0) / MS) for row in found.parts}
    # Of worker 0: 30, 18, 18 of communication; of worker 1: 30, 20, 20.
    assert parts["communication"] == pytest.approx((136 / 6, 35))
    assert parts["others"] == pytest.approx((2, 5))
    assert parts["backward"] == pytest.approx((40, 40))
    assert sum(this_ms for this_ms, _ in parts.values()) == pytest.approx(100)
    assert found.iteration.this == found.iteration.other == 100 * MS
    waits = {row.what: (row.this, row.other) for row in found.waits}
    assert waits == {"w": (30 * MS, 0), "all gradients": (0, 40 * MS)}
    assert found.waits[0].what == "all gradients"
    shares = {row.what: (row.this, row.other) for row in found.shares}
    assert shares["worker 0 push"][1] is None
    assert shares["worker 0 computes"] == pytest.approx((0.6, 0.6))


def test_unlike_jobs_are_told(tmp_path: Path) -> None:
    this = saved(tmp_path / "this", ps_job())
    assert compare(this, this).notes == []
    save_run(tmp_path / "other", small_job(), {**CONFIG, "bandwidth_bps": 10**8, "workers": 1})
    other = diagnose(Run(tmp_path / "other"))
    notes = [
        "this run has 2 workers, the other 1",
        "gradients of this run have 1.2 MB, those of the other 0.6 MB",
        "the links of the runs have different rates",
    ]
    found = compare(this, other)
    assert found.notes == notes
    assert as_json(this, found, "other")["against"]["notes"] == notes
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(diagnosis_tables(as_json(this, found, "other")))
    assert all(f"note: {note}\n" in console.export_text() for note in notes[:1])


def test_shares_of_different_things_are_not_compared(tmp_path: Path) -> None:
    """A link's use is a share of its rate, or, if that is not known, of the time."""
    this = saved(tmp_path / "this", ps_job())
    config = {name: value for name, value in CONFIG.items() if name != "bandwidth_bps"}
    save_run(tmp_path / "other", ps_job(), config)
    found = compare(this, diagnose(Run(tmp_path / "other")))
    shares = {row.what: row for row in found.shares}
    assert shares["worker 0 push"].this is not None
    assert shares["worker 0 push"].other is None
    assert shares["worker 0 computes"].this == shares["worker 0 computes"].other
    same = {row.what: row for row in compare(this, this).shares}
    assert same["worker 0 push"].this == same["worker 0 push"].other is not None


def small_job() -> list[Events]:
    """``ps_job`` as one worker saw it, with half of its bytes."""
    tables = [table for table in ps_job() if table.origin.role == "worker-0"]
    for table in tables:
        table.rows["size_bytes"] //= 2
    return tables


def test_plain_data(tmp_path: Path) -> None:
    this, other = saved(tmp_path / "this", ps_job()), saved(tmp_path / "other", stock_job())
    data = json.loads(json.dumps(as_json(this, compare(this, other), "other"), allow_nan=False))
    assert (data["schema"], data["run"], data["against"]["run"]) == (1, "this", "other")
    assert data["iteration_ns"] == {"median": 100 * MS, "p10": 100 * MS, "p90": 100 * MS}
    for mean_ns in data["breakdown"]["mean_ns"]:
        assert sum(mean_ns) == pytest.approx(100 * MS, abs=10)
    assert sum(row["share"] for row in data["path"]["kinds"]) == pytest.approx(1)
    assert sum(row["share"] for row in data["path"]["where"]) == pytest.approx(1)
    assert data["path"]["top"][0].keys() == {"kind", "name", "where", "mean_ns", "share"}
    assert data["stragglers"]["cost_ns"] == [0, 12 * MS]
    (gradient,) = data["gradients"][0]
    assert gradient == {
        "name": "w",
        "size_bytes": 1_200_000,
        "wait_ns": 2 * MS,
        "transfer_ns": 32 * MS,
        "exposed_ns": 30 * MS,
    }
    assert data["facts"]["scheduler"] == "fifo"
    assert data["facts"]["machine"] is None  # not this one
    assert data["settled"]["iterations"] == 2
    assert data["prediction"]["measured_ns"] == data["settled"]["median_ns"] == 100 * MS


def test_a_directory_without_config(tmp_path: Path) -> None:
    found = saved(tmp_path, collective_job())
    (tmp_path / "config.toml").unlink()
    data = as_json(diagnose(Run(tmp_path)), None)
    assert found.prediction is None
    assert data["facts"]["scheduler"] is None
    assert data["bound_ns"] is data["prediction"] is data["against"] is None
    assert data["not_predicted"].startswith("a replay needs")
