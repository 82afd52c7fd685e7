"""The task pages of the documents, followed: their files are written, and their commands run.

``tools/documents.py`` says how pages mark what is not run, or only in some places.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from documents import DOCS, TASK_PAGES, blocks

from byteprophet.network import why_not_permitted

pytest.importorskip("torch")
pytest.importorskip("byteps.torch")


@pytest.mark.job
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", TASK_PAGES)
def test_a_page_can_be_followed(name: str, tmp_path: Path) -> None:
    for page in TASK_PAGES:  # a page may use the scripts of another one
        for block in blocks(DOCS / page):
            if block.mark == "file":
                (tmp_path / block.what).write_text(block.text, encoding="utf-8")
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    run = 0
    for block in blocks(DOCS / name):
        if not block.is_commands or block.mark == "parse":
            continue
        if block.mark == "needs" and why_not_permitted():
            continue
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.text],
            cwd=tmp_path,
            env=os.environ | {"PATH": programs},
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        where = f"{name}, line {block.line}"
        assert done.returncode == 0, f"{where}: {done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr, f"{where}: {done.stderr}"
        run += 1
    assert run or why_not_permitted()


def test_marks_are_those_that_there_are() -> None:
    """A comment that is misspelt would let a block run, or not be written."""
    for page in DOCS.glob("*.md"):
        text = page.read_text(encoding="utf-8")
        marks = [block.mark for block in blocks(page) if block.mark]
        assert text.count("\n<!-- ") == len(marks), page.name
        needs = {block.what for block in blocks(page) if block.mark == "needs"}
        assert needs <= {"namespaces"}, page.name
