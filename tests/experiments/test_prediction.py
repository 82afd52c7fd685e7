"""Predictions of results that the engine itself made: the costs behind them are found again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import prediction
import pytest

from byteprophet.engine import COSTS as COSTS_OF_ENGINE
from byteprophet.errors import UserError
from byteprophet.job import Costs

COSTS = Costs(delay_ns=2_000_000, message_cost_ns=100_000)


def measured(partition_bytes: int, scheduler: str, **settings: int) -> dict[str, Any]:
    row: dict[str, Any] = {
        "workload": "resnet50",
        "scheduler": scheduler,
        "bandwidth_bps": 10**9,
        "workers": 2,
        "servers": 1,
        "partition_bytes": partition_bytes,
        "settings": {"forward_ns": 100_000_000, "backward_ns": 200_000_000, **settings},
        "paced": True,
        "runtime": "byteps",
        "steps": [],
        "tuned": None,
        "worker_bandwidth_bps": {},
    }
    return {**row, "iteration_ns": {"median": prediction.predict_ns(row, COSTS)}}


def test_costs_are_found_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        measured(262144, "p3", outstanding_messages=2, iterations=4),
        measured(1048576, "p3", outstanding_messages=1, iterations=4),
        measured(4096000, "stock"),
    ]
    assert prediction.best_costs(rows) == (COSTS, 0)
    assert prediction.mean_error(rows, COSTS_OF_ENGINE) > 0.01
    path = tmp_path / "measured.json"
    path.write_text(json.dumps({"schema": 1, "results": rows}))
    prediction.main([str(path)])
    assert "delay of 2000 us and 100 us per message" in capsys.readouterr().out


def test_a_partition_size_that_grew_in_mid_run() -> None:
    row = measured(524288, "prophet")
    grown = {**row, "settings": {**row["settings"], "partition_bytes": 262144}}
    assert prediction.predict_ns(grown, COSTS) == row["iteration_ns"]["median"]


def test_a_slow_worker_counts() -> None:
    row = measured(262144, "fifo")
    slow = {**row, "worker_bandwidth_bps": {"1": 10**8}}
    assert prediction.predict_ns(slow, COSTS) > 2 * row["iteration_ns"]["median"]


@pytest.mark.parametrize(
    "other",
    [
        {"runtime": "ddp", "scheduler": None},
        {"steps": ["3gbit@8i"]},
        {"tuned": {"iterations": [20]}},
        {"paced": False},
    ],
)
def test_jobs_that_are_not_simulated_are_refused(other: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(json.dumps({"results": [{**measured(262144, "fifo"), **other}]}))
    with pytest.raises(UserError, match="stay as they are"):
        prediction.main([str(path)])


@pytest.mark.parametrize("text", ["[]", "{}", '{"results": []}', '{"results": [{"paced": true}]}'])
def test_other_files_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"other\.json"):
        prediction.main([str(path)])
