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
from ..thorough import by_default

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
DEFAULT = [name for name in FOLLOWED if _MINUTES or name != "gpu-memory.md"]
"""Pages that are followed without ``--thorough``, too."""


def write_files(directory: Path) -> None:
    """Those of all pages: a page may use the scripts of another one."""
    for name, text in _FILES.items():
        (directory / name).write_text(text, encoding="utf-8")


def follow(text: str, directory: Path, where: str) -> str:
    """Runs commands as a shell does, in ``directory``. What they print on standard output."""
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
    return done.stdout


def lines_of(text: str) -> set[str]:
    """The lines without what only aligns their columns."""
    return {" ".join(line.split()) for line in text.splitlines()}


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
@pytest.mark.parametrize("name", by_default(sorted(FOLLOWED), DEFAULT))
def test_a_page_can_be_followed(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    write_files(tmp_path)
    printed: set[str] | None = None  # None: the last commands were not run
    for block in blocks(DOCS / name):
        if block.mark == "printed" and printed is not None:
            assert lines_of(block.text) <= printed, f"{name}, line {block.line}"
        if block.is_commands and not is_run(block):
            printed = None
        if not is_run(block):
            continue
        if "run" in block.needs:
            for run in set(_RUN.findall(block.text)):
                if not (tmp_path / run).exists():
                    shutil.copytree(request.getfixturevalue("recorded"), tmp_path / run)
        printed = lines_of(follow(block.text, tmp_path, f"{name}, line {block.line}"))


def test_what_is_said_to_be_printed_stands_below_commands_that_are_run() -> None:
    checked = 0
    for page in DOCS.glob("*.md"):
        above: Block | None = None
        for block in blocks(page):
            if block.mark == "printed":
                assert above is not None, f"{page.name}, line {block.line}"
                assert above.is_run, f"{page.name}, line {block.line}"
                checked += 1
            if block.is_commands:
                above = block
    assert checked >= 3


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
