"""What the compiled module says that it was built from."""

from __future__ import annotations

import runpy
from pathlib import Path

from byteprophet import _core

CHECKOUT = Path(__file__).parents[2]
digest = runpy.run_path(str(CHECKOUT / "native" / "bindings" / "sources.py"))["digest"]


def test_the_module_is_of_this_checkout() -> None:
    assert digest(CHECKOUT) == _core.SOURCES


def test_a_digest_is_of_the_files_wherever_they_lie(tmp_path: Path) -> None:
    found = []
    for place, name, text in (
        ("a", "x.h", "1"),
        ("b", "x.h", "1"),
        ("c", "x.h", "2"),
        ("d", "y.h", "1"),
    ):
        folder = tmp_path / place / "native" / "part"
        folder.mkdir(parents=True)
        (folder / name).write_text(text)
        found.append(digest(tmp_path / place))
    assert found[0] == found[1]
    assert len(set(found)) == 3
