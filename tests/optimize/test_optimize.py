"""The command: a real job recorded, optimised, and run again with what was found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

from byteprophet.cli.main import run_cli
from byteprophet.errors import JobFailed
from byteprophet.job.strategy_file import read_strategy_file

from ..namespaces import why_not_permitted
from ..report.test_page import Page
from ..timeline.perfetto_rules import broken_rules, read_trace
from .network_jobs import recorded

OUTSIDE = Path(__file__).with_name("outside_pass")


def optimized(run: Path, options: str) -> dict[str, Any]:
    """What ``byteprophet optimize`` finds: something better, as all passes here do."""
    assert run_cli(["optimize", str(run), *options.split(), "--json", "result.json"]) == 0
    result: dict[str, Any] = json.loads(Path("result.json").read_text())
    low_ns, high_ns = result["interval_ns"]
    assert low_ns <= result["predicted_ns"] <= high_ns
    assert result["predicted_ns"] < result["baseline_ns"]
    assert sum(each["gain_ns"] for each in result["decisions"]) > 0
    return result


def _failing(*_: object) -> NoReturn:
    raise JobFailed("worker-0 ended with status 1")


def install(folder: Path) -> None:
    """Have pip install the package with the pass into ``folder``."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", folder, OUTSIDE], check=True, timeout=120)


@pytest.mark.job(10)
@pytest.mark.skipif(why_not_permitted() is not None, reason=str(why_not_permitted()))
def test_a_job_with_one_bucket_gains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All gradients in one bucket: nothing overlaps, which any other strategy does better."""
    monkeypatch.chdir(tmp_path)
    run = recorded(60_000_000, "allreduce", bucket_bytes=100_000_000)

    result = optimized(run, "--budget-s 1 --pass runtime,tensor-fusion --trials 1 --out tried")
    assert {each["pass"] for each in result["decisions"]} <= {"runtime", "tensor-fusion"}
    assert "measured" not in result
    tried = read_strategy_file(Path("tried/trials/trial-1.json"))
    assert read_strategy_file(Path(result["strategy"])) == tried

    # What was found is there, too, if a run that measures it fails.
    with monkeypatch.context() as broken:
        broken.setattr("byteprophet.cli.optimize.apply", _failing)
        options = ["--budget-s", "1", "--pass", "tensor-fusion", "--apply", "--out", "broken"]
        assert run_cli(["optimize", str(run), *options, "--json", "broken.json"]) == 1
    told = json.loads(Path("broken.json").read_text())
    assert told["predicted_ns"] > 0
    assert "measured" not in told
    data = Page(Path("broken/optimization.html").read_text(encoding="utf-8")).data
    assert data["predicted_ns"] == told["predicted_ns"]

    # A pass that another package brings along takes part, and its strategy is the one that runs.
    install(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    result = optimized(run, "--budget-s 1 --pass quarters --apply --rounds 1 --out out")
    (decision,) = result["decisions"]
    assert decision["pass"] == "quarters"
    assert decision["what"] == "four buckets"
    assert result["measured"]["optimised_ns"] > 0
    used = read_strategy_file(Path(result["strategy"]))
    assert len(used.strategy.buckets) == 4
    ran = sorted(Path("out/runs").glob("*-optimised/strategy.json"))
    assert [read_strategy_file(path).strategy for path in ran] == [used.strategy]

    # The page tells of the same, and the traces are beside it.
    lines = capsys.readouterr().out.splitlines()
    for name in ("optimization.html", "before.json", "after.json"):
        assert [line for line in lines if line.endswith(f"out/{name}")], name
    data = Page(Path("out/optimization.html").read_text(encoding="utf-8")).data
    assert data["predicted_ns"] == result["predicted_ns"]
    assert data["measured"]["optimised_ns"] == result["measured"]["optimised_ns"]
    for name in ("before.json", "after.json"):
        trace = read_trace(Path("out") / name)
        assert broken_rules(trace) == []
        buckets = {event["name"] for event in trace["traceEvents"] if event["ph"] == "X"}
        assert ("bucket 3" in buckets) == (name == "after.json")

    # Where nothing can be written, that is said before the search.
    Path("file").touch()
    assert run_cli(["optimize", str(run), "--out", "file/out"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "file/out" in line


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--budget-s", "0"], "--budget-s 0.0: must be more than 0"),
        (["--rounds", "3"], "--rounds needs --apply"),
        (["--trials", "-1"], "--trials -1: must be at least 0"),
        (["--apply", "--rounds", "0"], "--rounds 0: must be at least 1"),
        (
            ["--pass", "magic"],
            "pass 'magic': choose of accumulation, bf16, bf16-gradients, compile, fp16-gradients, ",
        ),
        (["--would-add", "--pass", "runtime"], "--would-add: looks at all passes"),
        ([], "there is no such run directory"),
    ],
)
def test_wrong_input_is_one_line(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(["optimize", str(tmp_path / "run"), *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("byteprophet: error: ")
    assert said in line


@pytest.mark.parametrize("options", [["--trials", "1"], ["--apply"]])
def test_a_job_that_cannot_be_repeated_is_refused_before_the_search(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing was recorded here that a search could read."""
    config = 'workers = 2\nservers = 0\nsteps = ["3:worker-0:10mbit"]\n'
    (tmp_path / "config.toml").write_text(config)
    assert run_cli(["optimize", str(tmp_path), *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{options[0]}: its links changed in mid-run (--step)" in line
