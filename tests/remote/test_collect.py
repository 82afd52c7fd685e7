"""What a role elsewhere has written becomes the job's."""

from __future__ import annotations

from pathlib import Path

import pytest

from byteprophet.remote.job import ROLES, collect


def test_a_role_without_files_gives_no_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as a controller that was ended while it started, after the last role with files."""
    directory = tmp_path / ROLES / "worker-0"
    directory.mkdir(parents=True)
    (directory / "written").write_text("")
    assert collect(tmp_path, "worker-0") == []
    assert collect(tmp_path, "controller") == []
    assert [path.name for path in tmp_path.iterdir()] == ["written"]
    assert capsys.readouterr().err == ""
