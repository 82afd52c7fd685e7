"""What experiments/foretold.py prints where something is not known; the runs are made here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import foretold
import numpy as np
import pytest
from foretold import CORES, WALL, Ran, rows_of, sums_of

from byteprophet.engine import paced_job
from byteprophet.errors import UserError
from byteprophet.job import Job
from byteprophet.job.strategy import Region
from byteprophet.measure.servers import Measured
from byteprophet.workload import Tensor, Workload
from byteprophet.workload.as_job import times_of

MS = 1_000_000
WORKLOAD = Workload("small", 1, tuple(Tensor(f"t{n}", 400_000, MS, MS) for n in range(2)))


def job_under(scheduler: str) -> Job:
    job = paced_job(WORKLOAD, scheduler, workers=2, servers=1, bandwidth_bps=10**9)
    return replace(job, times=times_of(WORKLOAD, 2, 6))


def ran(name: str, job: Job, ways: Mapping[str, int]) -> Ran:
    """A run whose iterations took so many nanoseconds, as measured in each way."""
    starts = np.arange(job.iterations + 1)
    return Ran(
        name,
        {way: Measured(job, np.tile(time_ns * starts, (2, 1))) for way, time_ns in ways.items()},
    )


def test_what_is_not_known_is_not_printed_and_not_in_the_means(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    default, other = job_under("fifo"), job_under("prophet")
    compiled = replace(default.strategy, regions=(Region(("a",), compiled=True),))
    runs = [
        ran("1-recorded", default, {WALL: 20 * MS}),
        ran("2", other, {WALL: 10 * MS}),
        ran("3", replace(default, strategy=compiled), {WALL: 10 * MS}),
    ]
    monkeypatch.setattr(foretold, "_runs", lambda *_: iter(runs))
    found = [*rows_of(Path("cell"), 0.0, 1.0)]
    own, other_own = (row[3:5] for row, _ in found)
    assert own[0].endswith("%")
    assert own[1] == other_own[1] == ""
    gains, errors = found[1][0][5:8], found[1][0][8:]
    assert float(gains[0]) > 0
    assert gains[1:] == ["", "2.000"]
    assert errors[1] == ""
    (said,) = capsys.readouterr().err.splitlines()
    assert "cell: fifo" in said
    assert "1 region(s): is left out: regions are not foretold with servers" in said


def test_times_of_cores_are_compared_where_they_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    ways = {WALL: 20 * MS, CORES: 20 * MS}
    runs = [ran("1-recorded", job_under("fifo"), ways), ran("2", job_under("prophet"), ways)]
    monkeypatch.setattr(foretold, "_runs", lambda *_: iter(runs))
    _, (row, errors) = rows_of(Path("cell"), 0.0, 1.0)
    assert row[3] == row[4] != ""
    assert errors[2] == errors[3]


def test_means_are_of_what_is_known() -> None:
    nan = np.nan
    assert sums_of([(1, nan, -3, nan), (-2, 4, nan, nan)]) == [
        "1",
        "1.5",
        "4.0",
        "3.0",
        "",
        "3.0",
        "",
    ]


def test_a_strategy_without_any_run_to_foretell_it_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = job_under("fifo")
    compiled = replace(job.strategy, regions=(Region(("a",), compiled=True),))
    runs = [ran("1", replace(job, strategy=compiled), {WALL: MS})]
    monkeypatch.setattr(foretold, "_runs", lambda *_: iter(runs))
    assert not [*rows_of(Path("cell"), 0.0, 1.0)]
    assert "is left out: all runs under its transport have regions" in capsys.readouterr().err


def test_a_path_that_is_no_cell_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="typo: has no file 'recorded'"):
        foretold.main([str(tmp_path / "typo")])
