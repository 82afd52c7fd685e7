"""JSON read part by part is what Python's own reader makes of it, wherever pieces end."""

from __future__ import annotations

import codecs
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteprophet.errors import UserError
from byteprophet.timeline import json_stream
from byteprophet.timeline.json_stream import JsonStream
from byteprophet.timeline.json_traces import json_parts

PATH = Path("t.json")

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=15,
)


def pieces(content: bytes, size: int) -> Iterator[bytes]:
    return (content[begin : begin + size] for begin in range(0, len(content), size))


def all_values(stream: JsonStream) -> list[Any]:
    found = []
    while stream.peek():
        found.append(stream.value())
    return found


@given(
    st.lists(values, min_size=1),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32-be"]),
    st.booleans(),
    st.integers(4, 40),
)
def test_any_values_in_any_encoding(
    given_: list[Any], encoding: str, is_ascii: bool, size: int
) -> None:
    text = " \n".join(json.dumps(value, ensure_ascii=is_ascii) for value in given_)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_stream, "_CHUNK", 4)
        assert all_values(JsonStream(PATH, pieces(text.encode(encoding), size))) == given_


@given(st.integers(4, 40))
def test_words_that_are_no_json_are_null(size: int) -> None:
    text = (
        '{"a":inf,"b":[-nan, NaN,+inf ,-inf],"c":"x, inf,\\"inf]","d":1.50,"e":"\x07\\u00e9"}'
        " -Infinity"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_stream, "_CHUNK", 4)
        first, last = all_values(JsonStream(PATH, pieces(text.encode(), size)))
    assert (first["a"], first["c"], first["d"]) == (None, 'x, inf,"inf]', "1.50")
    assert first["e"] == "\x07é"
    assert [first["b"][place] for place in (0, 2, 3)] == [None] * 3
    assert math.isnan(first["b"][1])
    assert last == float("-inf")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('{"a": 1,\n "b": x}', "is cut off or not JSON: Expecting value in line 2, column 7"),
        ('[1,\n{"a"', "Expecting ':' delimiter in line 2, column 5, where the file ends"),
        ('["abc', "Unterminated string starting at in line 1, column 2"),
        ("[1 2]", "Expecting , or ] in line 1, column 4"),
        ('{"a" 1}', "Expecting : in line 1, column 6"),
        ("{1: 2}", 'Expecting " in line 1, column 2'),
        ("[" * 10**6, "is nested too deeply"),
        ("[" + "1" * 5000 + "]", "is not a trace: "),
        ('{"traceEvents": [], "traceEvents": []}', "has two lists traceEvents"),
        ('["' + "x" * (1 << 25), "is not a trace: a value in it has over 16777216 letters"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(text: str, named: str) -> None:
    with pytest.raises(UserError) as caught:
        list(json_parts(PATH, pieces(text.encode(), 1 << 20)))
    assert str(caught.value).startswith("t.json: is ")
    assert named in str(caught.value)


@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
def test_bytes_that_are_no_text(mark: bytes) -> None:
    content = mark + '{"a": "é", "b": "'.encode() + b"\xea"
    for size in (4, 7, 100):
        with pytest.raises(UserError, match=rf"is not UTF-8 text \(byte {len(content) - 1}\)"):
            all_values(JsonStream(PATH, pieces(content + b' x"}', size)))
        with pytest.raises(UserError, match="is cut off: it ends within a letter"):
            all_values(JsonStream(PATH, pieces(content, size)))


def test_parts_of_all_kinds_of_files() -> None:
    def parts(text: str) -> list[tuple[str, Any]]:
        return list(json_parts(PATH, pieces(text.encode(), 5)))

    assert parts('{"a": 1, "traceEvents": [{"x": 1}, 2] , "b": [3]}') == [
        ("traceEvents", {"x": 1}),
        ("traceEvents", 2),
        ("", {"a": 1, "traceEvents": [], "b": [3]}),
    ]
    assert parts(" [5]") == [("traceEvents", 5), ("", {"traceEvents": []})]
    assert parts('{"traceEvents": {}}') == [("", {"traceEvents": {}})]
    assert parts('{}{"a": 1}\n7') == [("", {}), ("", {"a": 1}), ("", 7)]
