"""Files that are none, too large, or say what nothing of ours says: one line each, soon."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from byteprophet.errors import UserError, one_line
from byteprophet.input_files import (
    check_file,
    first_repeated,
    is_there,
    parse_json,
    parse_table,
    read_bytes,
    read_json,
    read_text,
    whole_number,
)
from byteprophet.workload import load


def test_what_is_there_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b'{"a": [1, 2.5, "\xc3\xa9"]}')
    check_file(path)
    assert read_text(path) == '{"a": [1, 2.5, "\u00e9"]}'
    assert read_json(path) == {"a": [1, 2.5, "\u00e9"]}
    size_bytes = path.stat().st_size
    assert read_bytes(path, most_bytes=size_bytes) == path.read_bytes()
    with pytest.raises(UserError, match="is larger than 0 MiB"):
        read_bytes(path, most_bytes=size_bytes - 1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "No such file|no such file"),
        (lambda path: path.mkdir(), "Is a directory"),
        (os.mkfifo, "is not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "is not a regular file"),
        (lambda path: path.symlink_to(path.name), "Too many levels of symbolic links"),
    ],
)
def test_what_is_no_file_is_not_waited_for(
    make: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "x"
    make(path)
    for read in (read_bytes, check_file):
        with pytest.raises(UserError, match=message) as caught:
            read(path)
        assert str(caught.value).startswith(f"{path}: ")


def test_a_hole_of_a_terabyte_is_not_loaded(tmp_path: Path) -> None:
    with (tmp_path / "x").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UserError, match="is larger than 256 MiB"):
        read_text(tmp_path / "x")


@pytest.mark.parametrize("path", ["a\0b", "a\ud800b", "a" * 5000])
def test_paths_that_no_file_can_have(path: str) -> None:
    assert not is_there(path)
    with pytest.raises(UserError, match="nor a file"):
        load(path)
    with pytest.raises(UserError, match="cannot be read: "):
        read_bytes(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
        ("[" * 70 + "]" * 70, "nested too deeply"),
        ('{"a": ' * 70 + "1" + "}" * 70, "nested too deeply"),
        ("NaN", "NaN is not a number"),
        ("[-Infinity]", "-Infinity is not a number"),
        ("1e999", "1e999 is too large a number"),
        ('{"a": "\\ud800"}', "surrogates not allowed"),
        ('{"\\ud800": 1}', "surrogates not allowed"),
        ("9" * 5000, "Exceeds the limit"),
        ("", "Expecting value"),
        (b"\xff\xfe\xfa", "codec can't decode"),
    ],
)
def test_what_is_no_json(text: str | bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        parse_json(text)
    (tmp_path / "x").write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(UserError, match=f"x: is not JSON: .*{message}"):
        read_json(tmp_path / "x")


def test_numbers_beyond_all_floats_are_refused() -> None:
    with pytest.raises(ValueError, match="too large a number"):
        parse_json("[1" + "0" * 400 + "]")
    with pytest.raises(UserError, match=r"x: is not TOML: -1.* is too large a number"):
        parse_table("a = -1" + "0" * 400, "x")
    assert parse_json(str(1 << 64)) == 1 << 64


def test_the_first_repeated_name_is_found_soon() -> None:
    names = [f"name {number}" for number in range(200_000)]
    assert first_repeated(names) is None
    assert first_repeated([*names, "name 7", "name 5"]) == "name 7"


@pytest.mark.parametrize("value", [[[]] * 3, {"a": {"b": "\U0001f600"}}, [], None, 0.5])
def test_plain_values_are_json(value: Any) -> None:
    import json

    assert parse_json(json.dumps(value)) == value


@pytest.mark.parametrize(
    "text", ["a = " + "[" * 5000 + "]" * 5000, "a = " + "[" * 70 + "]" * 70, "a." * 70 + "b = 1"]
)
def test_toml_that_is_too_deep(text: str) -> None:
    with pytest.raises(UserError, match="x: is not TOML: it is nested too deeply"):
        parse_table(text, "x")


@pytest.mark.parametrize(
    ("text", "number"),
    [("7", 7), ("20", 20), ("9" * 18, 10**18 - 1), ("0", 0)]
    + [
        (text, None) for text in ("", " 7", "-1", "1.0", "9" * 19, "9" * 5000, "\uff11", "1_0", "x")
    ],
)
def test_whole_numbers(text: str, number: int | None) -> None:
    assert whole_number(text) == number


def test_a_line_is_short_and_steers_no_terminal() -> None:
    assert one_line("a\n b\t\u00e9") == "a b \u00e9"
    assert one_line("\x1b[2J\ud800") == "\\x1b[2J\\ud800"
    line = one_line("begin " + "x" * 10**6 + " end")
    assert len(line) < 1100
    assert line.startswith("begin ")
    assert line.endswith(" end")
