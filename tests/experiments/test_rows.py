"""Results files that go on, and what they do not take for their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rows import Rows

from byteprophet.errors import UserError


def test_rows_are_kept_and_belong_to_their_settings(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    Rows(path, {"workload": "w"}).add({"round": 1, "variant": "a", "value": 3})
    again = Rows(path, {"workload": "w"})
    cells = [{"round": 1, "variant": "a"}, {"round": 1, "variant": "b"}]
    assert again.missing(cells) == cells[1:]
    assert [row["value"] for row in again.of(cells[0])] == [3]
    with pytest.raises(UserError, match="was measured with"):
        Rows(path, {"workload": "other"})


@pytest.mark.parametrize("text", ["{}", "[1]", '{"schema": 1, "settings": {}, "results": [1]}'])
def test_what_holds_no_rows_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rows.json"
    path.write_text(text)
    with pytest.raises(UserError, match="not a results file"):
        Rows(path, {})


@pytest.mark.parametrize("other", [{"code": "other"}, {"machine": {"cores": 512}}])
def test_rows_of_other_code_or_another_machine_are_put_aside(
    tmp_path: Path, other: dict[str, object]
) -> None:
    path, cell = tmp_path / "rows.json", {"round": 1}
    Rows(path, {}).add({**cell, "value": 1})
    old = {**json.loads(path.read_text()), **other}
    path.write_text(json.dumps(old))
    rows = Rows(path, {})
    assert rows.of(cell) == []
    assert json.loads(path.read_text()) == old, "nothing was measured: nothing was moved"
    rows.add({**cell, "value": 2})
    (aside,) = tmp_path.glob("rows-before-*.json")
    assert json.loads(aside.read_text()) == old
    assert [row["value"] for row in Rows(path, {}).of(cell)] == [2]
