"""The file with the workers' common order comes back as it was; a wrong one is one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from byteprophet.errors import UserError
from byteprophet.job.order_file import NAME, Order, read_order, write_order


def test_comes_back(tmp_path: Path) -> None:
    order = Order(100_000_000, {"a": 5, "b and 1 more": 0}, since=7)
    write_order(tmp_path, order)
    assert read_order(tmp_path) == order


def test_without_a_file_there_is_none(tmp_path: Path) -> None:
    assert read_order(tmp_path) is None


TENSOR = {"name": "a", "ready_ns": 5}


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        ({"schema": 2}, "schema"),
        ({"since": 0}, "since"),
        ({"since": True}, "since"),
        ({"bandwidth_bps": 0}, "bandwidth_bps"),
        ({"bandwidth_bps": "fast"}, "bandwidth_bps"),
        ({"tensors": {}}, "tensors"),
        ({"tensors": [3]}, "a name of its own"),
        ({"tensors": [TENSOR, TENSOR]}, "a name of its own"),
        ({"tensors": [{**TENSOR, "ready_ns": -1}]}, "a: ready_ns must be"),
        ({"tensors": [{**TENSOR, "ready_ns": 1.5}]}, "a: ready_ns must be"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, changed: dict[str, Any], part: str) -> None:
    data = {"schema": 1, "since": 2, "bandwidth_bps": 8, "tensors": [], **changed}
    (tmp_path / NAME).write_text(json.dumps(data))
    with pytest.raises(UserError) as raised:
        read_order(tmp_path)
    assert str(raised.value).startswith(str(tmp_path / NAME))
    assert part in str(raised.value)
    assert "\n" not in str(raised.value)
