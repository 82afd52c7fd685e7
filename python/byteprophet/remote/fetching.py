"""Where a client keeps what it fetches, until all of it is there."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def fetching(kept: Path) -> Iterator[Path]:
    """The path of a new folder to fetch into, which becomes ``kept`` at the end.

    If an exception ends it, what has come stays under that path, and may have files that are not
    whole. A role that was started again may have files in ``kept`` already: those that it has not
    written again stay.
    """
    partial = partial_of(kept)
    shutil.rmtree(partial, ignore_errors=True)  # of a fetch that failed: it is fetched again
    yield partial
    if kept.exists():
        shutil.copytree(partial, kept, symlinks=True, dirs_exist_ok=True)
        shutil.rmtree(partial)
    elif partial.exists():
        partial.rename(kept)


def partial_of(kept: Path) -> Path:
    """Where files are until all are fetched, and stay if they are not."""
    return kept.with_name(f"{kept.name}.partial")
