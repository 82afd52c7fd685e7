"""A validation: which jobs it runs, what it says of them, and a real one of two jobs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from byteprophet.bench import Case
from byteprophet.bench.case import all_reduce_case
from byteprophet.bench.grid_store import FILE
from byteprophet.cli.main import run_cli
from byteprophet.errors import UserError
from byteprophet.measure.servers import measure
from byteprophet.replay.predict import predict
from byteprophet.replay.what_if import Changes
from byteprophet.validate.cases import RECORDED, ValidationCase, select, validation_cases
from byteprophet.validate.run import iterations_ns
from byteprophet.validate.validation import Compared, Errors, Pair, Validation
from byteprophet.workload import Tensor, Workload, to_toml

from ..measure.recorded_replay import config_of, record
from ..measure.test_servers import a_job

BASE = Case("resnet18", "p3", 500_000_000, workers=2, servers=1)


def test_every_case_differs_in_one_thing() -> None:
    cases = validation_cases(BASE, ("stock", "p3", "prophet"))
    assert [case.name for case in cases] == [
        RECORDED,
        "250mbit",
        "1gbit",
        "stock",
        "prophet",
        "partitions of 786432",
        "3 workers",
        "2 servers",
    ]
    assert cases[0].case == BASE
    for case in cases[1:]:
        changed = {name for name in vars(BASE) if getattr(BASE, name) != getattr(case.case, name)}
        assert len(changed) == 1, case.name
        told = {name: value for name, value in vars(case.changes).items() if value is not None}
        assert list(told.values()) == [getattr(case.case, name) for name in changed]
    assert [case.name for case in cases if case.same_link] == [RECORDED, "stock", "prophet"]
    unlimited = validation_cases(Case("resnet18", "stock", None), ())
    assert [case.name for case in unlimited[1:]] == [
        "partitions of 1024000",
        "3 workers",
        "2 servers",
    ]


def test_cases_of_a_job_without_servers() -> None:
    base = all_reduce_case(BASE, "dear", {})
    cases = validation_cases(base, ("stock",))
    assert [case.name for case in cases] == [
        RECORDED,
        "250mbit",
        "1gbit",
        "allreduce",
        "dear-planned",
        "buckets of 6291456",
        "3 workers",
    ]
    for case in cases[1:]:
        changed = {name for name in vars(base) if getattr(base, name) != getattr(case.case, name)}
        assert len(changed) == 1, case.name
        case.case.collective_settings  # noqa: B018 (raises for what its runtime does not take)
    links, last = [RECORDED, "250mbit", "1gbit"], ["buckets of 6291456", "3 workers"]
    for runtime, alike in (("ddp", ["wfbp"]), ("wfbp", ["ddp"]), ("fsdp2", [])):
        others = validation_cases(all_reduce_case(BASE, runtime, {}), ())
        assert [case.name for case in others] == [*links, *alike, *last]


def test_cases_are_chosen_by_name() -> None:
    cases = validation_cases(BASE, ("stock", "fifo"))
    assert [case.name for case in select(cases, ["fifo"])] == [RECORDED, "fifo"]
    assert select(cases, None) == cases
    for none in ("4 workers", RECORDED):
        with pytest.raises(UserError, match=f"--cases: '{none}': choose of 250mbit, 1gbit, stock"):
            select(cases, [none])


def test_an_iteration_ends_when_the_last_worker_begins_the_next() -> None:
    """Workers are late in turn. The slowest one's own times would add up to 110 ns, not 90."""
    assert iterations_ns([1000, 1010], [[30, 40, 30], [40, 20, 30]]) == [40, 20, 30]


def compared(policy: str, predicted_over_measured: float) -> Compared:
    """A case whose prediction is the same in all, and whose job took accordingly."""
    job = a_job("fifo", iterations=4)
    measured = measure(record(job)[0], config_of(job))
    prediction = predict(measured, Changes())
    took_ns = round(prediction.median_ns / predicted_over_measured)
    case = ValidationCase(policy, Changes(), Case("w", policy, None), same_link=True)
    records = ({"iteration_ns": [took_ns - 1, took_ns, took_ns + 1], "variant": policy},)
    return Compared(case, prediction, (prediction,), records)


def test_errors_and_pairs() -> None:
    cases = (compared("fifo", 1.0), compared("p3", 1.25), compared("prophet", 0.98))
    assert [case.error for case in cases] == pytest.approx([0, 0.25, -0.02], abs=1e-6)
    validation = Validation(cases)
    assert (validation.errors.mean, validation.errors.worst) == pytest.approx(
        (0.135, 0.25), abs=1e-6
    )
    replay_error = abs(cases[0].predicted.replay_error)
    assert validation.replay_errors == Errors(replay_error, replay_error)
    # The predictions are all the same, so no order is right; fifo and prophet are too close.
    assert validation.pairs() == [Pair("p3", "fifo", False), Pair("p3", "prophet", False)]


@pytest.mark.job
def test_two_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = (Tensor("a", 2_000_000, 10_000_000, 20_000_000), Tensor("b", 40, 10**7, 2 * 10**7))
    (tmp_path / "two.toml").write_text(to_toml(Workload("two", 1, tensors)))
    out = tmp_path / "out"
    arguments = ["replay", "--validate", "--workload", str(tmp_path / "two.toml")]
    arguments += ["--bandwidth", "unlimited", "--policy", "fifo", "--schedulers", "p3"]
    arguments += ["--compute-scale", "2"]
    arguments += ["--cases", "p3", "--iterations", "3", "--out", str(out)]
    assert run_cli(arguments) == 0
    assert "pairs of policies that differ by over 5%" in capsys.readouterr().out
    ran = (out / FILE).read_text()
    # Once more: nothing is run, and the same comes out.
    assert run_cli([*arguments, "--json"]) == 0
    assert (out / FILE).read_text() == ran
    said = json.loads(capsys.readouterr().out)
    assert said == json.loads((out / "validation.json").read_text())
    assert [case["case"] for case in said["cases"]] == [RECORDED, "p3"]
    for case in said["cases"]:
        assert case["error"] == case["predicted_ns"]["median"] / case["measured_ns"] - 1
        assert case["measured_ns"] >= 2 * 60_000_000
        assert len(case["replays"]) == 1
        assert (out / "runs" / case["replays"][0]["run"]).is_dir()
    assert said["recorded"] == said["cases"][0]["replays"][0]["run"]


def test_options_that_do_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        (["replay"], "name a run directory, or use --validate"),
        (["replay", str(tmp_path), "--rounds", "2"], "--rounds needs --validate"),
        (["replay", "--validate", str(tmp_path)], "RUN cannot be combined with --validate"),
        (["replay", "--validate", "--iterations", "0"], "must be at least 1"),
        (["replay", "--validate", "--compute-scale", "nan"], "--compute-scale nan: must be from"),
        (["replay", "--validate", "--schedulers", "best"], "choose one of"),
        (["replay", "--validate", "--cases", "none"], "--cases: 'none': choose of 500mbit"),
    ):
        assert run_cli(arguments) == 2
        assert message in " ".join(capsys.readouterr().err.split())
