"""Results files say what they were given, a series on a line."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from results_file import results_text, write_results

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
