"""The library in the page is the file that was tried, or there is no page and one line says why."""

from __future__ import annotations

import sys
from importlib.metadata import distribution, version
from pathlib import Path

import pytest

from byteprophet.errors import UserError
from byteprophet.report.page import library

SCRIPT = "youplot/vendor/uplot.iife.min.js"


def test_the_library_has_no_address_and_is_small() -> None:
    for text in (library.script(), library.style()):
        assert "://" not in text
        assert "</" not in text
        assert 1_000 < len(text) < 60_000
    assert library.script().startswith("var uPlot=")
    assert "youplot" not in sys.modules
    assert version("youplot") == "1.0.0"


def test_another_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package of the same name and version, one byte of whose script is another."""
    content = bytearray(Path(str(distribution("youplot").locate_file(SCRIPT))).read_bytes())
    content[-1] ^= 1
    script = tmp_path / SCRIPT
    script.parent.mkdir(parents=True)
    script.write_bytes(content)
    metadata = tmp_path / "youplot-1.0.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: youplot\nVersion: 1.0.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        UserError, match=r"differs from that of youplot 1\.0\.0: pip install .*==1\.0\.0"
    ):
        library.script()


@pytest.mark.parametrize("kept", [False, True])
def test_a_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    """Nothing is installed, or only what tells its name."""
    if kept:
        metadata = tmp_path / "youplot-1.0.0.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text("Metadata-Version: 2.1\nName: youplot\nVersion: 1.0.0\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(UserError, match=r"youplot .* is missing: pip install .*==1\.0\.0"):
        library.style()
