"""The file of a paced device's busy intervals."""

from __future__ import annotations

from pathlib import Path

import pytest

from byteprophet.errors import UserError
from byteprophet.workload.busy import busy_path, read_busy, write_busy


def test_round_trip(tmp_path: Path) -> None:
    write_busy(tmp_path, 1, [(1, 5), (5, 6), (9, 12)])
    assert read_busy(tmp_path, 1) == [(1, 5), (5, 6), (9, 12)]
    assert [path.name for path in (tmp_path / "events").iterdir()] == ["compute-1.json"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"schema": 2, "rank": 0, "busy": []}', "schema must be 1, got 2"),
        ('{"schema": 1, "rank": 0, "busy": [[1, 5], [4, 6]]}', "must be in order"),
        ('{"schema": 1, "rank": 0, "busy": [[1]]}', "is not a file of busy intervals"),
        ("nothing", "is not a file of busy intervals"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    write_busy(tmp_path, 0, [])
    busy_path(tmp_path, 0).write_text(text)
    with pytest.raises(UserError, match=message):
        read_busy(tmp_path, 0)
    with pytest.raises(UserError, match="No such file"):
        read_busy(tmp_path, 1)
