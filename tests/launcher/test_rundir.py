from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from byteprophet.errors import JobFailed, UserError
from byteprophet.launcher import make_run_directory, read_worker_results, run_job

from .conftest import MakeSpec

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def test_run_directories_are_unique_and_named(tmp_path: Path) -> None:
    paths = [make_run_directory(tmp_path / "runs", "p3 at 1gbit/s") for _ in range(3)]
    assert len(set(paths)) == 3
    assert all(path.is_dir() and path.is_absolute() for path in paths)
    assert re.fullmatch(r"\d{8}T\d{6}Z-p3-at-1gbit-s", paths[0].name)


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="Not a directory"):
        make_run_directory(tmp_path / "file", "x")


def test_worker_results_come_by_rank(tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    for rank in (10, 2, 0):
        (results / f"worker-{rank}.json").write_text(json.dumps({"rank": rank}))
    assert [result["rank"] for result in read_worker_results(tmp_path)] == [0, 2, 10]
    (results / "worker-1.json").write_text("{")
    with pytest.raises(JobFailed, match=r"worker-1\.json is not JSON"):
        read_worker_results(tmp_path)


def test_a_run_leaves_its_record(make_spec: MakeSpec) -> None:
    spec = make_spec(
        ("sh", "-c", "echo to-out; echo to-err >&2"),
        environment={"BYTEPS_LOG_LEVEL": "INFO", "MY_PASSWORD": "secret"},
        partition_bytes=8192,
        workers=1,
    )
    result = run_job(spec)
    config_text = (spec.run_directory / "config.toml").read_text()
    config = tomllib.loads(config_text)
    assert config["schema"] == 1
    assert config["command"] == list(spec.command)
    assert (config["workers"], config["servers"], config["scheduler"]) == (1, 1, "stock")
    assert config["partition_bytes"] == 8192
    assert config["settings"] == {"partition_bytes": 8192}
    assert config["environment"]["BYTEPS_LOG_LEVEL"] == "INFO"
    assert "secret" not in config_text
    summary = json.loads((spec.run_directory / "summary.json").read_text())
    assert summary["status"] == "done"
    assert summary["wall_s"] == result.wall_s
    assert [role["name"] for role in summary["roles"]] == ["scheduler", "server-0", "worker-0"]
    log = (spec.run_directory / "logs" / "worker-0.log").read_text()
    assert log == "to-out\nto-err\n"
