"""The patch queue carries as little of BytePS' source as a patch can."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PATCHES = sorted((Path(__file__).parents[2] / "native/byteps/patches").glob("*.patch"))
_CONTEXT = 2
"""One line before a change and one after; between two changes that share a hunk, both."""


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_a_patch_changes_files_that_there_are_and_says_why(patch: Path) -> None:
    reason, first, rest = patch.read_text(encoding="utf-8").partition("--- a/")
    assert reason.strip()
    assert first
    files = re.findall(r"^(?:---|\+\+\+) (.+)$", first + rest, re.MULTILINE)
    assert files
    assert all(name.startswith(("a/", "b/")) for name in files)
    assert not [name for name in files if name.endswith((".orig", ".rej"))]


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_a_patch_has_one_line_of_context(patch: Path) -> None:
    body = "--- a/" + patch.read_text(encoding="utf-8").partition("--- a/")[2]
    changes = re.sub(r"^(---|\+\+\+|@@).*\n", "-\n", body, flags=re.MULTILINE)
    runs = re.findall(r"(?:^ .*\n?)+", changes, re.MULTILINE)
    assert max(run.count("\n") for run in runs) <= _CONTEXT


def test_they_are_numbered_without_gaps() -> None:
    assert [int(patch.name[:4]) for patch in PATCHES] == [*range(1, len(PATCHES) + 1)]
