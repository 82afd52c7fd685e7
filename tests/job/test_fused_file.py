"""The file of buffers that gradients share comes back as it was; a wrong one is one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from byteprophet.errors import UserError
from byteprophet.job.fused_file import ALONE, NAME, Fused, read_fused, write_fused


def test_comes_back(tmp_path: Path) -> None:
    fused = Fused({"a and 1 more": ("a", "b"), "c and 2 more": ("c", "d", "e")}, since=2)
    write_fused(tmp_path, fused)
    assert read_fused(tmp_path) == fused
    assert fused.of("a and 1 more") == ("a", "b")
    assert fused.of("large") == ("large",)


def test_without_a_file_nothing_is_shared(tmp_path: Path) -> None:
    assert read_fused(tmp_path) == ALONE


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        ({"schema": 2}, "schema"),
        ({"since": 0}, "since"),
        ({"since": True}, "since"),
        ({"buffers": {}}, "buffers"),
        ({"buffers": [3]}, "two parameters or more"),
        ({"buffers": [{"name": "a", "parameters": ["a"]}]}, "two parameters or more"),
        ({"buffers": [{"name": "a", "parameters": ["a", 1]}]}, "must be names"),
        ({"buffers": [{"name": n, "parameters": ["a", "b"]} for n in "xy"]}, "once"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, changed: dict[str, Any], part: str) -> None:
    data = {"schema": 1, "since": 2, "buffers": [], **changed}
    (tmp_path / NAME).write_text(json.dumps(data))
    with pytest.raises(UserError) as raised:
        read_fused(tmp_path)
    assert str(raised.value).startswith(str(tmp_path / NAME))
    assert part in str(raised.value)
    assert "\n" not in str(raised.value)
