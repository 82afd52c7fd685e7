"""A real paced job with delayed averages: exact, recorded, replayed, made anew, not optimised."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from byteprophet.bench import Case, Plan, run_bench
from byteprophet.bench.case import all_reduce_case, job_of, strategy_case
from byteprophet.bench.result import paper_fields
from byteprophet.cli.main import run_cli
from byteprophet.job.strategy import Delay
from byteprophet.job.strategy_file import Used, read_strategy_file, write_strategy
from byteprophet.measure.run import Run
from byteprophet.measure.servers import measure_run
from byteprophet.paced.check import expected_parameters, parameters_sha256
from byteprophet.replay.predict import predict
from byteprophet.replay.what_if import Changes
from byteprophet.strategy.builders import build
from byteprophet.strategy.delayed import delayed

from .test_execute import RATE_BPS, mixed_workload, write

LATE = {"layer1.weight": 1, "layer5.weight": 2}


@pytest.mark.job
def test_a_job_with_delayed_averages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workload = mixed_workload()
    base = all_reduce_case(Case(write(workload, tmp_path), "prophet", RATE_BPS), "dear-planned", {})
    made = delayed(
        build("dear-planned", job_of(base, workload)),
        [f"{name}={steps}" for name, steps in LATE.items()],
    )
    path = tmp_path / "late.json"
    write_strategy(path, Used(made.model, made.strategy, 0))
    case = strategy_case(base, path)
    plan = Plan((case,), iterations=6, rounds=1, record=True, idle_s=0.0)
    (row,) = run_bench(plan, tmp_path / "runs", RATE_BPS is not None, print)
    expected = expected_parameters(workload, 2, plan.updates, LATE)
    assert row["parameters_sha256"] == parameters_sha256(expected)
    prompt = expected_parameters(workload, 2, plan.updates)
    assert row["parameters_sha256"] != parameters_sha256(prompt)

    run = Path(row["run"])
    measured = measure_run(Run(run))
    assert measured.job.strategy.staleness == tuple(Delay(*each) for each in LATE.items())
    assert read_strategy_file(run / "strategy.json").strategy.buckets == made.strategy.buckets
    prediction = predict(measured, Changes())
    assert prediction.error is not None
    assert prediction.bound_ns <= prediction.median_ns

    out = tmp_path / "again.json"
    capsys.readouterr()
    arguments = ["strategy", "make", "dear", str(run), "--out", str(out)]
    assert run_cli(arguments) == 0
    assert f"its averages are delayed, and those of {out} are not" in capsys.readouterr().err
    assert read_strategy_file(out).strategy.staleness == ()
    assert run_cli([*arguments, "--staleness", "layer[15].*=1"]) == 0
    again = read_strategy_file(out).strategy
    assert again.staleness == (Delay("layer1.weight", 1), Delay("layer5.weight", 1))
    assert run_cli(["strategy", "explain", str(out), str(run)]) == 0
    assert "predicted" in capsys.readouterr().out
    assert run_cli(["optimize", str(run)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "its averages are delayed, and no pass knows what that allows" in line


def test_what_no_schedule_without_delays_can_reach_is_not_printed(tmp_path: Path) -> None:
    workload = mixed_workload()
    case = all_reduce_case(Case(write(workload, tmp_path), "prophet", 400_000_000), "dear", {})
    assert "eq7_ns" in paper_fields(workload, case)
    assert paper_fields(workload, replace(case, staleness=(Delay("layer1.weight", 1),))) == {}
