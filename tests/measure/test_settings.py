"""What a policy was told in mid-run, from the files of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from byteprophet.errors import UserError
from byteprophet.job.order_file import Order, write_order
from byteprophet.measure.servers import measure
from byteprophet.measure.settings import Told, read_told

from .recorded_replay import config_of, record
from .test_servers import a_job

PLAN = {
    "schema": 1,
    "number": 2,
    "at_iteration": 4,
    "settings": {"window_max_bytes": 2097152, "plan_bandwidth_bps": 480000000},
    "ready": [{"name": "conv1.weight", "ready_ns": 250, "spread_ns": 3}],
    "blocks": [],
    "predicted_iteration_ns": 1,
    "reason": "",
}


def test_nobody_told_it_anything(tmp_path: Path) -> None:
    assert read_told(tmp_path) == Told()


def test_a_plan_and_a_tuner(tmp_path: Path) -> None:
    trial = {"schema": 1, "trial": 0, "iteration": 3, "settings": {"credit_bytes": 1}}
    choice = {"schema": 1, "iteration": 7, "chosen": {"credit_bytes": 2, "partition_bytes": 8192}}
    (tmp_path / "tuning.jsonl").write_text(json.dumps(trial) + "\n" + json.dumps(choice) + "\n")
    assert read_told(tmp_path) == Told({"credit_bytes": 2, "partition_bytes": 8192}, {}, 8)
    (tmp_path / "plan.json").write_text(json.dumps(PLAN))
    told = read_told(tmp_path)
    assert told.settings["credit_bytes"] == 2
    assert told.settings["window_max_bytes"] == 2097152
    assert told.ready == {"conv1.weight": (250, 3)}
    assert told.settled_from == 8


def test_an_order_unless_there_is_a_plan(tmp_path: Path) -> None:
    write_order(tmp_path, Order(300000000, {"conv1.weight": 200}, since=6))
    told = read_told(tmp_path)
    assert told == Told({"plan_bandwidth_bps": 300000000}, {"conv1.weight": (200, 0)}, 5)
    (tmp_path / "plan.json").write_text(json.dumps(PLAN))
    told = read_told(tmp_path)
    assert told.settings["plan_bandwidth_bps"] == 480000000
    assert told.ready == {"conv1.weight": (250, 3)}
    assert told.settled_from == 5
    settings = {"window_max_bytes": 2097152, "plan_bandwidth_bps": 0}
    (tmp_path / "plan.json").write_text(json.dumps({**PLAN, "settings": settings}))
    assert read_told(tmp_path).settings["plan_bandwidth_bps"] == 300000000


def test_a_broken_plan_is_named(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps({**PLAN, "number": 0}))
    with pytest.raises(UserError, match=r"plan\.json: number: "):
        read_told(tmp_path)


def test_what_is_no_setting_of_the_policy_is_named() -> None:
    job = a_job("prophet", iterations=6)
    with pytest.raises(
        UserError, match="during the run: scheduler prophet has no setting 'window'"
    ):
        measure(record(job)[0], config_of(job), Told({"window": 1}))


def test_the_job_is_what_it_was_told() -> None:
    job = a_job("prophet", iterations=6)
    told = Told({"window_max_bytes": 2097152}, {job.model.names[2]: (250, 3)}, 3)
    measured = measure(record(job)[0], config_of(job), told)
    policy = measured.job.push_policy
    assert policy.settings == {**job.push_policy.settings, "window_max_bytes": 2097152}
    assert policy.ready_times == ((2, -3, 250, 3),)
    assert measured.settled_from == 3
