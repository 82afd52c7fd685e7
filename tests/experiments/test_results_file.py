"""Results files say what they were given, a series on a line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from results_file import earlier_results, results_text, write_results

from byteprophet.errors import UserError

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(values)
def test_reads_as_what_was_written(value: object) -> None:
    assert json.loads(results_text(value)) == value


def test_a_series_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.json"
    write_results(path, {"schema": 1, "results": [{"name": "a", "times": [[1, 2], [3.5, None]]}]})
    assert path.read_text() == (
        '{\n "schema": 1,\n "results": [\n  {\n   "name": "a",\n'
        '   "times": [\n    [1, 2],\n    [3.5, null]\n   ]\n  }\n ]\n}\n'
    )


def test_results_of_others_are_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    assert earlier_results(path, machine={"cores": 2}) is None
    write_results(path, {"machine": {"cores": 2}, "results": [1]})
    assert earlier_results(path, machine={"cores": 2}) == [1]
    with pytest.raises(UserError, match=r"was measured with the machine .*: choose another --out"):
        earlier_results(path, machine={"cores": 4})
    path.write_text("[]")
    with pytest.raises(UserError, match="was measured with the machine"):
        earlier_results(path, machine={"cores": 2})
