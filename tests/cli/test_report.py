"""``byteprophet report``: tables, JSON and a page; one line for what cannot be reported."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from byteprophet.cli.main import run_cli

from ..diagnose.hand_made import MS, ps_job, save_run, stock_job
from ..measure.recorded_replay import config_of, record
from ..measure.test_servers import a_job


@pytest.fixture
def run(tmp_path: Path) -> Path:
    directory = tmp_path / "recorded"
    save_run(directory, ps_job())
    return directory


def test_tables_and_page(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["report", str(run)]) == 0
    said, noted = capsys.readouterr()
    assert "recorded: 3 iterations of 100.0 ms" in said
    assert "waiting for" in said
    assert "other workers" in said
    assert "computation" not in said  # nobody has any beside its layers
    assert "Critical path of worker-0: backward 40%, forward 20%" in said
    assert "Who came last, in 2 pushes at servers" in said
    assert noted == f"page: {run / 'report.html'}\n"
    page = (run / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert "<title>byteprophet: recorded</title>" in page


def test_why_there_is_no_prediction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    save_run(run, stock_job()[:-1])  # servers recorded nothing
    assert run_cli(["report", str(run)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f" Not replayed: {run}" in said
    assert "; so there is no bound Where" in said


def test_the_newest_run_of_a_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = a_job("fifo", iterations=6)
    for number, name in enumerate(("newer", "older")):
        save_run(tmp_path / name, record(job)[0], config_of(job))
        os.utime(tmp_path / name / "config.toml", (9 - number, 9 - number))
    assert run_cli(["report", str(tmp_path)]) == 0
    assert capsys.readouterr().err.startswith(f"byteprophet: run {tmp_path / 'newer'}\n")
    assert (tmp_path / "newer" / "report.html").exists()
    assert run_cli(["report", str(tmp_path / "older"), "--against", str(tmp_path)]) == 0
    assert "Against newer: " in capsys.readouterr().out


def test_json_against_another_run(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_run(tmp_path / "other", stock_job())
    out = tmp_path / "page.html"
    options = ["--against", str(tmp_path / "other"), "--out", str(out), "--json"]
    assert run_cli(["report", str(run), *options]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["against"]["run"] == "other"
    assert data["against"]["iteration"]["this"] == 100 * MS
    assert out.exists()
    assert not (run / "report.html").exists()
    assert run_cli(["report", str(run), *options[:-1]]) == 0
    said = capsys.readouterr().out
    assert "Against other: 1.000 x its iteration (1.000 to 1.000)" in said
    assert "wait all gradients" in said


def test_the_replay_stands_beside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = a_job("fifo", iterations=6)
    save_run(tmp_path / "run", record(job)[0], config_of(job))
    assert run_cli(["report", str(tmp_path / "run"), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert abs(data["prediction"]["error"]) < 0.02
    assert data["bound_ns"] == data["prediction"]["bound_ns"] < data["iteration_ns"]["median"]


def test_ratio_and_error_are_of_the_same_iterations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not of those before the last plan, whose median is another one."""
    job = a_job("fifo", iterations=12)
    save_run(tmp_path / "run", record(job)[0], config_of(job))
    plan = {
        "schema": 1,
        "number": 1,
        "at_iteration": 10,
        "settings": {},
        "ready": [],
        "blocks": [],
        "predicted_iteration_ns": 1,
        "reason": "",
    }
    (tmp_path / "run" / "plan.json").write_text(json.dumps(plan))
    assert run_cli(["report", str(tmp_path / "run"), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    settled = data["settled"]
    assert settled["iterations"] == 3 < len(data["iterations"])
    assert settled["median_ns"] == data["prediction"]["recorded_ns"]
    assert run_cli(["report", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    assert f"are of the last 3 of them, of {settled['median_ns'] / 1e6:.1f} ms;" in said
    assert f"{settled['median_ns'] / data['bound_ns']:.3f} x the bound" in said


def test_links_that_changed_leave_no_bound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = a_job("fifo", iterations=6)
    run = tmp_path / "run"
    save_run(run, record(job)[0], {**config_of(job), "steps": ["1gbit@3i"]})
    why = "its links changed during the run (--step), and a replay has one rate"
    for changes in ([], ["--bandwidth", "3gbit"]):
        assert run_cli(["replay", str(run), *changes]) == 2
        said, line = capsys.readouterr()
        assert not said
        assert line.endswith(f"run: {why}\n")
    assert run_cli(["report", str(run), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["bound_ns"] is data["prediction"] is None
    assert data["not_predicted"].endswith(why)
    assert data["settled"]["iterations"] == len(data["iterations"])


def test_mistakes(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*arguments: str) -> str:
        assert run_cli(["report", *arguments]) == 2
        said, line = capsys.readouterr()
        assert not said
        assert line.count("\n") == 1
        return line

    assert "there is no such run directory" in refused(str(tmp_path / "nothing"))
    (tmp_path / "empty").mkdir()
    assert "is neither a run directory nor has any in it" in refused(str(tmp_path / "empty"))
    (tmp_path / "empty" / "events").mkdir()
    assert "has no recorded events: run the job with --record" in refused(str(tmp_path / "empty"))
    assert "there is no such run" in refused(str(run), "--against", str(tmp_path / "nothing"))
    where = str(tmp_path / "nowhere" / "page.html")
    line = refused(str(run), "--out", where)
    assert f"{where}: cannot be written: No such file" in line
    assert "--out" not in line
    (run / "report.html").mkdir()
    line = refused(str(run))
    assert f"{run / 'report.html'}: cannot be written: Is a directory: --out puts" in line
    (run / "report.html").rmdir()
    path = next((run / "events").glob("spans-worker-1*"))
    path.write_bytes(path.read_bytes()[:20])
    assert f"{path}: is not a file of events" in refused(str(run))
