"""Directories whose files were measured with something else are not gone on with."""

from __future__ import annotations

from pathlib import Path

import measured_with
import pytest
from measured_with import begin_with, check_measured_with

from byteprophet.errors import UserError

SETTINGS = {"iterations": 30, "budget_s": 300.0, "allow": "compile"}


def test_a_directory_goes_on_with_the_same_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "cell"
    check_measured_with(directory, SETTINGS)
    assert not directory.exists(), "to look is not to begin"
    begin_with(directory, SETTINGS)
    begin_with(directory, SETTINGS)
    other = {**SETTINGS, "iterations": 20, "budget_s": 10.0}
    with pytest.raises(UserError, match="cell: was begun with another iterations and budget_s: "):
        begin_with(directory, other)
    monkeypatch.setattr(measured_with, "code_version", lambda: "other")
    with pytest.raises(UserError, match="was begun with another code: use another --out"):
        check_measured_with(directory, SETTINGS)


@pytest.mark.parametrize("content", [None, "[]"])
def test_files_that_nothing_is_known_of_are_not_added_to(
    tmp_path: Path, content: str | None
) -> None:
    (tmp_path / "recorded").write_text("a run\n")
    if content is not None:
        (tmp_path / "measured-with.json").write_text(content)
    with pytest.raises(UserError, match="does not say with what it was measured"):
        begin_with(tmp_path, SETTINGS)
