"""Packed files of other tools: a small one may unpack to more than any trace has."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from byteprophet.cli.main import run_cli
from byteprophet.errors import UserError
from byteprophet.timeline import foreign_files
from byteprophet.timeline.foreign_files import read_chunks

MIB = 1 << 20


def packed(path: Path, content: bytes) -> Path:
    path.write_bytes(gzip.compress(content, mtime=0))
    return path


def test_a_bomb_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bomb = packed(tmp_path / "t.json.gz", b'{"traceEvents": [' + b"{}," * (3 * MIB))
    assert run_cli(["timeline", str(bomb)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{bomb}: unpacks to more than 256 times its size" in line


def test_what_unpacks_to_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign_files, "_MOST_BYTES", 2 * MIB)
    read = read_chunks(packed(tmp_path / "t.json.gz", b"[1]" * MIB))
    with pytest.raises(UserError, match="unpacks to more than 2 MiB"):
        list(read)


def test_a_file_that_is_as_large_unpacked_is_read(tmp_path: Path) -> None:
    content = b"[1]" * MIB
    plain = tmp_path / "t.json"
    plain.write_bytes(content)
    for path in (plain, packed(tmp_path / "t.json.gz", content)):
        assert b"".join(read_chunks(path)) == content
