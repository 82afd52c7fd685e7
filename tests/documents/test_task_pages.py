"""The task pages of the documents, followed: their files are written, and their commands run.

``tools/documents.py`` says how pages mark what is not run, or only in some places. What needs
minutes is run if ``BYTEPROPHET_ALL_PAGES`` is 1 (``make test-pages``); it always parses
(``test_commands.py``).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from documents import DOCS, TASK_PAGES, Block, blocks

from ..namespaces import why_not_permitted

pytest.importorskip("torch")
pytest.importorskip("byteps.torch")

_MINUTES = os.environ.get("BYTEPROPHET_ALL_PAGES") == "1"
_WHAT_IS_THERE = {"namespaces": not why_not_permitted(), "minutes": _MINUTES}


def is_run(block: Block) -> bool:
    return block.is_commands and block.mark != "parse" and all(map(_WHAT_IS_THERE.get, block.needs))


RUN = [name for name in TASK_PAGES if any(is_run(block) for block in blocks(DOCS / name))]


@pytest.mark.job
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", RUN)
def test_a_page_can_be_followed(name: str, tmp_path: Path) -> None:
    for page in TASK_PAGES:  # a page may use the scripts of another one
        for block in blocks(DOCS / page):
            if block.mark == "file":
                (tmp_path / block.what).write_text(block.text, encoding="utf-8")
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for block in filter(is_run, blocks(DOCS / name)):
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.text],
            cwd=tmp_path,
            env=os.environ | {"PATH": programs},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        where = f"{name}, line {block.line}"
        assert done.returncode == 0, f"{where}: {done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr, f"{where}: {done.stderr}"


def test_marks_are_those_that_there_are() -> None:
    """A comment that is misspelt would let a block run, or not be written."""
    for page in DOCS.glob("*.md"):
        text = page.read_text(encoding="utf-8")
        marks = [block.mark for block in blocks(page) if block.mark]
        assert text.count("\n<!-- ") == len(marks), page.name
        for block in blocks(page):
            assert block.needs <= _WHAT_IS_THERE.keys(), page.name
