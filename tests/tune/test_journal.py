from __future__ import annotations

from pathlib import Path

import pytest

from byteprophet.errors import UserError
from byteprophet.tune.journal import NAME, Journal, read_journal


def test_lines_come_back(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write(trial=0, settings={"credit_bytes": 5})
    journal.write(chosen={"credit_bytes": 5})
    first, second = read_journal(tmp_path)
    assert (first["trial"], second["chosen"]) == (0, {"credit_bytes": 5})


def test_without_a_directory_nothing_is_written(tmp_path: Path) -> None:
    Journal(None).write(trial=0)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / NAME).mkdir()
    journal = Journal(tmp_path)
    journal.write(trial=0)
    journal.write(trial=1)
    assert (
        capsys.readouterr().err.count(f"{tmp_path / NAME}: cannot be written: Is a directory;") == 1
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        (b'{"schema": 1}\n{', "line 2"),
        (b"[]\n", "line 1: schema is not 1"),
        (b'{"schema": 1}\n"\xff"\n', "line 2: 'utf-8' codec can't decode"),
    ],
)
def test_errors_name_file_and_line(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / NAME).write_bytes(content)
    with pytest.raises(UserError) as raised:
        read_journal(tmp_path)
    assert str(tmp_path / NAME) in str(raised.value)
    assert message in str(raised.value)
