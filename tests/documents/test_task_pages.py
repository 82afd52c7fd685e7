"""The pages of the documents, followed: their files are written, and their commands run.

``tools/documents.py`` says how pages mark what is not run, or only in some places, and
``tools/shown_commands.py`` lists it. What needs minutes is run if ``BYTEPROPHET_ALL_PAGES`` is 1
(``make test-pages``); it always parses (``test_commands.py``).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from documents import DOCS, NEEDS, PAGES, Block, blocks

from ..namespaces import why_not_permitted

pytest.importorskip("torch")
pytest.importorskip("byteps.torch")

_MINUTES = os.environ.get("BYTEPROPHET_ALL_PAGES") == "1"
_WHAT_IS_THERE = {"namespaces": not why_not_permitted(), "minutes": _MINUTES, "run": True}
_RUN = re.compile(r"\bruns/(?:RUN|\d{8}T\d{6}Z-\w+)")
"""A run that a page assumes, as readers have some."""
_BLOCKS = [block for page in DOCS.glob("*.md") for block in blocks(page) if block.mark == "file"]
_FILES = {block.what: block.text for block in _BLOCKS}


def is_run(block: Block) -> bool:
    return block.is_run and all(map(_WHAT_IS_THERE.get, block.needs))


FOLLOWED = [page.name for page in DOCS.glob("*.md") if any(map(is_run, blocks(page)))]


def write_files(directory: Path) -> None:
    """Those of all pages: a page may use the scripts of another one."""
    for name, text in _FILES.items():
        (directory / name).write_text(text, encoding="utf-8")


def follow(text: str, directory: Path, where: str) -> None:
    """Runs commands as a shell does, in ``directory``."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=directory,
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{where}: {done.stdout}{done.stderr}"
    assert "Traceback" not in done.stderr, f"{where}: {done.stderr}"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a recorded job of the first page's script."""
    directory = tmp_path_factory.mktemp("recorded")
    write_files(directory)
    follow("byteprophet run --record -- python train.py", directory, "a recorded job")
    (made,) = (directory / "runs").iterdir()
    return made


@pytest.mark.job
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", sorted(FOLLOWED))
def test_a_page_can_be_followed(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    write_files(tmp_path)
    for block in filter(is_run, blocks(DOCS / name)):
        if "run" in block.needs:
            for run in set(_RUN.findall(block.text)):
                if not (tmp_path / run).exists():
                    shutil.copytree(request.getfixturevalue("recorded"), tmp_path / run)
        follow(block.text, tmp_path, f"{name}, line {block.line}")


def test_no_two_files_have_the_same_name() -> None:
    assert sorted(_FILES) == sorted(block.what for block in _BLOCKS)


def test_marks_are_those_that_there_are() -> None:
    """A comment that is misspelt would let a block run, or not be written."""
    assert _WHAT_IS_THERE.keys() == set(NEEDS)
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        marks = [block.mark for block in blocks(page) if block.mark]
        assert text.count("\n<!-- ") == len(marks), page.name
        for block in blocks(page):
            assert block.needs <= _WHAT_IS_THERE.keys(), page.name
