"""Files that grow, are cut, are replaced, and hold anything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteprophet.watch.tail import Tail, new_lines


def test_only_whole_lines_and_only_new_ones(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\ntw")
    tail = Tail(path, 1000)
    assert tail.lines() == [b"one"]
    assert tail.lines() == []
    with path.open("ab") as file:
        file.write(b"o\nthree\n")
    assert tail.lines() == [b"two", b"three"]


def test_a_file_that_was_cut_or_replaced_is_read_anew(tmp_path: Path) -> None:
    path, other = tmp_path / "log", tmp_path / "other"
    path.write_bytes(b"one\ntwo\n")
    tail = Tail(path, 1000)
    tail.lines()
    path.write_bytes(b"new\n")
    assert tail.lines() == [b"new"]
    other.write_bytes(b"old\nmore\n")
    other.replace(path)
    assert tail.lines() == [b"old", b"more"]


def test_of_a_long_file_the_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"".join(b"line %d\n" % n for n in range(1000)))
    tail = Tail(path, 50)
    lines = tail.lines()
    assert lines[-1] == b"line 999"
    assert set(lines) <= {b"line %d" % n for n in range(1000)}


def test_a_line_that_is_too_long_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\n" + b"x" * (1 << 21) + b"\ntwo\n")
    assert Tail(path, 1 << 22).lines() == [b"one", b"two"]


def test_what_is_left_out_is_told_of_each_file(tmp_path: Path) -> None:
    path, other = tmp_path / "log", tmp_path / "other"
    tail, told = Tail(path, 2 << 20), list[str]()
    path.write_bytes(b"one\n" + b"x" * (1 << 19) + b"\n")
    assert new_lines(tail, told.append) == [b"one"]
    assert told == [f"{path}: lines of more than 256 KiB are left out"]
    other.write_bytes(b"line\n" * (1 << 19))
    other.replace(path)
    for _ in range(2):  # for as long as it is so
        told.clear()
        new_lines(tail, told.append)
        assert told == [f"{path}: all but its last 2 MiB are left out"]
    path.write_bytes(b"one\n")
    told.clear()
    assert new_lines(tail, told.append) == [b"one"]
    assert told == []


def test_no_file_and_no_regular_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Tail(tmp_path / "missing", 10).lines()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        Tail(tmp_path / "pipe", 10).lines()


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_pieces_make_the_same_lines_as_the_whole(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("tail") / "log"
    path.touch()
    tail, lines = Tail(path, 10_000), []
    for piece in pieces:
        with path.open("ab") as file:
            file.write(piece)
        lines += tail.lines()
    assert lines == b"".join(pieces).split(b"\n")[:-1]
