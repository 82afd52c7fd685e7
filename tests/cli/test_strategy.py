"""``byteprophet strategy``: what it prints, its exit statuses, and what it hands to ``run``."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from byteprophet.cli.main import run_cli
from byteprophet.job.predicted import Predicted
from byteprophet.job.strategy import Region
from byteprophet.job.strategy_file import read_strategy_file, write_strategy
from byteprophet.optimize.recorded import used_by
from byteprophet.runtime_settings import STRATEGY
from byteprophet.strategy.builders import build

from ..diagnose.hand_made import save_run
from ..measure.recorded_replay import config_of, record
from ..measure.test_servers import a_job
from ..strategy.jobs import mesh_job, served_job

RATE_BPS = 400_000_000


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A directory with strategies of small jobs."""
    mesh = mesh_job([RATE_BPS, RATE_BPS, RATE_BPS // 2])
    served = served_job([RATE_BPS] * 2, [RATE_BPS] * 2)
    for name, job in (("dear", mesh), ("owners", mesh), ("partitioned-ps", served)):
        write_strategy(tmp_path / f"{name}.json", used_by(build(name, job), job))
    return tmp_path


def test_a_strategy_is_shown_and_compared(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["strategy", "show", str(files / "owners.json")]) == 0
    shown = capsys.readouterr().out
    assert "1, 1, 0" in shown
    assert "layer.0" in shown
    same = [str(files / "dear.json")] * 2
    assert run_cli(["strategy", "diff", *same]) == 0
    assert "They are equal." in capsys.readouterr().out
    assert run_cli(["strategy", "diff", str(files / "dear.json"), str(files / "owners.json")]) == 1
    assert "owners" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["check", "none.json"], "none.json: there is no such file"),
        (["check", "owners.json", "--workers", "4"], "weights for 3 ranks, not 4"),
        (["check", "owners.json", "--servers", "2"], "for a job without servers"),
        (["check", "partitioned-ps.json", "--servers", "1"], "the job has 1 server(s)"),
        (["check", "partitioned-ps.json", "--servers", "0"], "for a job with servers"),
        (["check", "partitioned-ps.json", "--servers", "-3"], "--servers -3: must be at least 0"),
        (["check", "dear.json", "--workers", "0"], "--workers 0: must be at least 1"),
        (["check", "wfbp.json"], "wfbp.json: wfbp cannot be given a strategy; byteps, ddp,"),
        (["explain", "dear.json", ".", "--servers", "2"], "--servers 2: only a strategy of two"),
        (
            ["compress", "dear.json", "*=onebit", "--out", "dear.json"],
            "is one of the files to read",
        ),
        (["resources", "cluster.toml", "--out", "cluster.toml"], "is one of the files to read"),
        (["check", "partial.json"], "partial.json: parameter 'layer.0' is in no bucket"),
        (["check", "damaged.json"], "damaged.json: schema: must be 1"),
        (["check", "policy.json"], "policy.json: scheduler 'nosuch': choose one of stock"),
        (["check", "setting.json"], "setting.json: scheduler fifo has no setting"),
        (["check", "partition.json"], "partition.json: partition bytes 0, but setting"),
        (["check", "bare.json"], "bare.json: scheduler fifo: setting partition_bytes=0"),
        (["check", "server.json"], "on server 1, and the job has 1 server(s)"),
        (["compress", "local.json", "*=onebit"], "local.json: local_sgd: it averages no gradients"),
        (["run", "partitioned-ps.json", "--servers", "0", "--", "true"], "it needs servers"),
        (["run", "none.json", "--", "true"], "none.json"),
        (["make", "dear", "no-run"], "no-run"),
    ],
)
def test_what_is_refused(
    files: Path,
    arguments: list[str],
    says: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (files / "damaged.json").write_text(json.dumps({"schema": 7}))
    partial = json.loads((files / "dear.json").read_text())
    for bucket in partial["buckets"]:
        bucket["parameters"] = [name for name in bucket["parameters"] if name != "layer.0"]
    partial["buckets"] = [bucket for bucket in partial["buckets"] if bucket["parameters"]]
    (files / "partial.json").write_text(json.dumps(partial))
    wfbp = json.loads((files / "dear.json").read_text()) | {"runtime": "wfbp"}
    for bucket in wfbp["buckets"]:
        bucket["sharded"] = False
    (files / "wfbp.json").write_text(json.dumps(wfbp))
    (files / "cluster.toml").write_text('schema = 1\n[[host]]\nname = "a"\n')
    (files / "config.toml").touch()
    local = json.loads((files / "dear.json").read_text()) | {"local_sgd": 4}
    (files / "local.json").write_text(json.dumps(local))
    _save_what_no_job_runs(files)
    monkeypatch.chdir(files)
    assert run_cli(["strategy", *arguments]) == 2
    assert not (files / "compressed.json").exists()
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_resources_without_a_server_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = mesh_job([RATE_BPS] * 2)
    monkeypatch.setattr("byteprophet.cli.strategy.measure_run", lambda _: SimpleNamespace(job=job))
    save_run(tmp_path, [], {"workers": 2, "servers": 0})
    (tmp_path / "cluster.toml").write_text('schema = 1\n[[host]]\nname = "a"\n[[host]]\nname = "b"')
    options = ["--resources", str(tmp_path / "cluster.toml"), "--out", str(tmp_path / "out.json")]
    assert run_cli(["strategy", "make", "mixed", str(tmp_path), *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "cluster.toml: no host takes a server, and mixed needs one: add a [[host]]" in line


@pytest.mark.parametrize(
    "arguments", ["make ps RUN --out OUT", "explain FILE RUN", "search RUN --out OUT"]
)
def test_a_run_whose_model_ran_as_its_record_does_not_say_is_refused(
    arguments: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its times are those of compiled regions, of which a run with servers keeps nothing."""
    places = {"FILE": tmp_path / "served.json", "OUT": tmp_path / "out"}
    job = a_job("fifo", iterations=4)
    config = {**config_of(job), "environment": {STRATEGY: str(places["FILE"])}}
    refusals = []
    for regions in ((), (Region(("layer1",), compiled=True),)):
        used = used_by(replace(job, strategy=replace(job.strategy, regions=regions)), job)
        write_strategy(places["FILE"], used)
        places["RUN"] = tmp_path / f"{len(regions)} regions"
        save_run(places["RUN"], record(job)[0], {**config, "strategy_digest": used.digest})
        run_cli(["strategy", *(str(places.get(word, word)) for word in arguments.split())])
        refusals.append("served.json says: use the run that it came" in capsys.readouterr().err)
    assert refusals == [False, True]


def _save_what_no_job_runs(files: Path) -> None:
    """Strategies with servers that are well formed, and could not be started."""
    served = json.loads((files / "partitioned-ps.json").read_text())
    for name, change in {
        "policy": {"policy": {"name": "nosuch", "settings": {}}},
        "setting": {"policy": {"name": "fifo", "settings": {"wat": 3}}},
        "partition": {"partition_bytes": 0},
        "bare": {"partition_bytes": 0, "policy": {"name": "fifo", "settings": {}}},
        "server": {"servers": 1},
    }.items():
        (files / f"{name}.json").write_text(json.dumps(served | change))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"compressors": [{"parameters": ["*"], "type": "onebit"}]}, ""),
        ({"accumulation": 2}, ""),
        ({"autocast": "bf16"}, ""),
        ({"owners": [1, 1]}, "weights for 2 ranks, and the job has 3"),
        ({"parameters": "other"}, "another model: parameter 'in' has 4 bytes, and 400000"),
    ],
)
def test_what_cannot_be_predicted_may_fit(
    files: Path,
    change: dict[str, Any],
    says: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "byteprophet.cli.strategy.measure_run",
        lambda _: SimpleNamespace(job=mesh_job([RATE_BPS] * 3)),
    )
    file, data = files / "dear.json", json.loads((files / "dear.json").read_text())
    if "parameters" in change:
        data["parameters"][0]["size_bytes"] = 4
    else:
        data |= change
    file.write_text(json.dumps(data))
    (files / "config.toml").touch()
    status = run_cli(["strategy", "check", str(file), "--run", str(files)])
    printed = capsys.readouterr()
    assert status == (2 if says else 0)
    assert (says in printed.err) if says else ("it fits" in printed.out.replace("\n", " "))


def test_regions_are_of_modules_that_the_model_can_have(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names of parameters, here ``layer.N``, tell of those that hold some."""
    file, data = files / "dear.json", json.loads((files / "dear.json").read_text())
    for modules, status in (
        (["layer"], 0),
        (["layer", "head"], 0),
        (["layer.act"], 0),
        (["layer.0"], 2),  # which is a parameter
        (["layer", "other.act"], 2),
        (["layer.act.inner"], 2),
    ):
        region = {"modules": modules, "compiled": True, "recomputed": False}
        file.write_text(json.dumps({**data, "regions": [region]}))
        assert run_cli(["strategy", "check", str(file)]) == status
        printed = capsys.readouterr()
        if status:
            assert f"regions: its model has no module {modules[-1]!r}" in printed.err
        else:
            assert ("not checked" in printed.out) == (modules != ["layer"])


def test_what_fits_is_said_with_its_digest(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = files / "partitioned-ps.json"
    assert run_cli(["strategy", "check", str(file), "--servers", "2"]) == 0
    assert "6 parameters" in capsys.readouterr().out


def test_a_compressed_strategy_has_no_prediction_of_the_plain_one(files: Path) -> None:
    plain, out = files / "dear.json", files / "compressed.json"
    expected = Predicted(2_000_000, (1_000_000, 3_000_000), 1_000_000)
    write_strategy(plain, replace(read_strategy_file(plain), predicted=expected))
    assert run_cli(["strategy", "compress", str(plain), "*=topk,k=0.01", "--out", str(out)]) == 0
    assert read_strategy_file(out).predicted is None
