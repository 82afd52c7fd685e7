"""YAML files: what JSON could say, read alike; all else is refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from byteprophet.errors import UserError
from byteprophet.yaml_files import read_yaml, yaml_text

VALUE: dict[str, Any] = {
    "text": "a b",
    "looks like more": ["no", "on", "1:30", "2026-11-27", "0x10", "1_000", "", "null", "~", "1e3"],
    "numbers": [0, -7, 1.5, 0.01, 1e-05, 1 << 50],
    "nothing": None,
    "yes": True,
    "no": False,
    "nested": [{"a": [], "b": {}}, [[1], [2]]],
    "pattern*": "é [x]",
}


def read(folder: Path, text: str) -> Any:
    path = folder / "x.yaml"
    path.write_text(text, encoding="utf-8")
    return read_yaml(path)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert read(tmp_path, yaml_text(VALUE)) == VALUE
    assert json.dumps(read(tmp_path, yaml_text(VALUE))) == json.dumps(VALUE)  # types, too
    assert read(tmp_path, json.dumps(VALUE, indent=1)) == VALUE


def test_plain_text_stays_text(tmp_path: Path) -> None:
    text = "a: no\nb: 1:30\nc: 2026-11-27\nd: 010\ne: 1e-3\nf: 12\ng:\nyes: <<\n"
    found = read(tmp_path, text)
    assert found == {
        "a": "no",
        "b": "1:30",
        "c": "2026-11-27",
        "d": "010",
        "e": 0.001,
        "f": 12,
        "g": None,
        "yes": "<<",
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: 2\na: 3\n", "line 3, column 1: key 'a' occurs twice"),
        ('"*": {x: 1, x: 2}', "column 13: key 'x' occurs twice"),
        ("a: &all [1]\nb: *all\n", "line 2, column 4: aliases are not read"),
        ("1: a\n", "line 1, column 1: key '1' is no text: put it into quotes"),
        ("[a]: b\n", "key \"['a']\" is no text"),
        ("a: !!python/object/apply:os.system [ls]\n", "line 1, column 4: tags are not read: leave"),
        ("a: !!timestamp 2026-11-27\n", "leave out 'tag:yaml.org,2002:timestamp'"),
        ("a: !!set {b}\n", "tags are not read"),
        ('a: !!int ""\n', "tags are not read"),
        ("a: !!map [1]\n", "tags are not read"),
        ("- ! 5\n", "tags are not read: leave out '!'"),
        ("a: 1e999\n", "inf is not a number that JSON has"),
        ("a: [1\n", "line 2, column 1: while parsing a flow sequence, expected"),
        ("a: 1\n---\nb: 2\n", "expected a single document in the stream"),
        ("[" * 100 + "]" * 100, "it is nested too deeply"),
        ("[" * 50_000, "is not YAML: "),
        ("a: \x07\n", "is not YAML: "),
    ],
)
def test_all_else_is_refused_in_one_line(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        read(tmp_path, text)
    line = str(refused.value)
    assert line.startswith(f"{tmp_path}/x.yaml: is not YAML: ")
    assert said in line
    assert "\n" not in line


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"x\.yaml: cannot be read: No such file"):
        read_yaml(tmp_path / "x.yaml")
    (tmp_path / "x.yaml").write_bytes(b"\xff")
    with pytest.raises(UserError, match="is not UTF-8 text"):
        read_yaml(tmp_path / "x.yaml")


def test_a_file_that_would_take_minutes_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"x\.yaml: is larger than 1 MiB, .* use JSON"):
        read(tmp_path, "a: b\n" * 300_000)
