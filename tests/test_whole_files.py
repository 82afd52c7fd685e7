"""Files that readers see whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from byteprophet.whole_files import whole_file


def test_takes_its_place_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text("old")
    with whole_file(path) as partial:
        partial.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_after_an_error_the_old_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text("old")

    def write_half() -> None:
        with whole_file(path) as partial:
            partial.write_text("half")
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        write_half()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
