"""The worker's configuration and results files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from byteprophet.errors import UserError
from byteprophet.paced.worker_config import WorkerConfig, WorkerResult, read_worker_config
from byteprophet.workload import load

CONFIG = WorkerConfig("resnet50", "prophet", 3, 20, 900_000_000)
RESULT = WorkerResult(
    rank=1,
    size=2,
    iteration_ns=(5, 6),
    cpu_fraction=0.5,
    idle_cpu_fraction=0.25,
    parameters_sha256="ab",
    updates=5,
    scheduled_partitions=7,
    first_monotonic_ns=100,
    last_monotonic_ns=111,
    tuning_ns=(7, 8, 9),
    wire_bytes=(10, 20),
)


@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        replace(CONFIG, compute_ns=None, scheduler="stock", tune_iterations=300),
        replace(CONFIG, next_batch_size=32, next_batch_at=9),
        replace(CONFIG, scheduler=None, runtime="dear", settings={"tune": 1}),
        replace(CONFIG, scheduler=None, settings={"bucket_cap_mb": 4}),
        replace(CONFIG, strategies=("a.json", "")),
    ],
)
def test_config_round_trip(tmp_path: Path, config: WorkerConfig) -> None:
    path = tmp_path / "worker.toml"
    path.write_text(config.to_toml())
    assert read_worker_config(path) == config


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("iterations = 20", "iterations = 0", "iterations must be an integer from 1, got 0"),
        ("warmup_iterations = 3", "warmup_iterations = -1", "warmup_iterations must be an integer"),
        ("idle_s", "runtime = 3\nidle_s", "runtime must be a text that is not empty, got 3"),
        ("idle_s", "strategies = [3]\nidle_s", "strategies must be a list of texts"),
        ("idle_s", 'strategies = "a"\nidle_s', "strategies must be a list of texts"),
        ("idle_s", 'runtime = "dear"\nidle_s', "scheduler and runtime: they exclude each other"),
        ('"prophet"', "3", "scheduler must be a text that is not empty, got 3"),
        ('workload = "resnet50"\n', "", "workload is missing"),
        ("compute_ns", "compute_ms", "unknown field 'compute_ms'"),
        ("idle_s", "next_batch_at = 0\nidle_s", "next_batch_at must be an integer from 1, got 0"),
        (
            "idle_s",
            "next_batch_at = 3\nidle_s",
            "next_batch_size and next_batch_at belong together",
        ),
        ("idle_s", "settings = 3\nidle_s", "settings must be a table, got 3"),
        ("idle_s", "settings = {a = 1.5}\nidle_s", "settings.a must be an integer, got 1.5"),
    ],
)
def test_config_errors_name_file_and_field(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    path = tmp_path / "worker.toml"
    path.write_text(CONFIG.to_toml().replace(old, new, 1))
    with pytest.raises(UserError) as raised:
        read_worker_config(path)
    assert str(raised.value).startswith(f"{path}: {message}")


def test_load_workload_at_the_speed_asked_for() -> None:
    assert CONFIG.load_workload() == load("resnet50")
    assert replace(CONFIG, compute_ns=30).load_workload() == load("resnet50").scaled(30)
    assert replace(CONFIG, compute_ns=None).load_workload() == load("resnet50")


def test_compute_is_in_proportion_to_the_batch() -> None:
    before = CONFIG.load_workload()
    half = before.batch_size // 2
    after = replace(CONFIG, next_batch_size=half, next_batch_at=9).load_next_workload()
    assert after.batch_size == half
    assert after.forward_ns + after.backward_ns == 450_000_000
    sizes = [[(t.name, t.size_bytes) for t in w.tensors] for w in (before, after)]
    assert sizes[0] == sizes[1]


def test_result_round_trip(tmp_path: Path) -> None:
    RESULT.write(tmp_path)
    (path,) = (tmp_path / "results").iterdir()
    assert path.name == "worker-1.json"
    assert WorkerResult.of(json.loads(path.read_text())) == RESULT


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"schema": 1', '"schema": 2', "schema is not 1"),
        ('"rank"', '"rang"', "is not a worker's result: .*rang"),
        ('"iteration_ns"', '"iterations"', "is not a worker's result: 'iteration_ns'"),
        ('"rank": 1', '"rank": [1]', r"is not a worker's result: rank is \[1\]"),
        ('"rank": 1', '"rank": 1.5', "is not a worker's result: rank is 1.5"),
        ('"rank": 1', '"rank": 9999999999999999999', "rank is 9999999999999999999"),
        ('"parameters_sha256": "', '"parameters_sha256": 1, "x": "', "is not a worker's result"),
    ],
)
def test_other_results_are_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    RESULT.write(tmp_path)
    text = (tmp_path / "results" / "worker-1.json").read_text().replace(old, new)
    with pytest.raises(ValueError, match=message):
        WorkerResult.of(json.loads(text))
