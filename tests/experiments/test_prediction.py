"""Predictions of results that the engine itself made: the costs behind them are found again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import prediction
import pytest

from byteprophet.engine import Costs
from byteprophet.errors import UserError

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
    }
    return {**row, "iteration_ns": {"median": prediction.predict_ns(row, COSTS)}}


def test_costs_are_found_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        measured(262144, "p3", outstanding_messages=2, iterations=4),
        measured(1048576, "p3", outstanding_messages=1, iterations=4),
        measured(4096000, "stock"),
    ]
    assert prediction.best_costs(rows) == (COSTS, 0)
    assert prediction.mean_error(rows, Costs()) > 0.01
    path = tmp_path / "measured.json"
    path.write_text(json.dumps({"schema": 1, "results": rows}))
    prediction.main([str(path)])
    assert "delay of 2000 us and 100 us per message" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["[]", "{}", '{"results": []}', '{"results": [{"paced": false}]}'])
def test_other_files_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"other\.json"):
        prediction.main([str(path)])
