"""Files that readers see whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write ``text`` to ``path``, whose directory exists; until then, the old file stays."""
    with whole_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A path to write to, which takes ``path``'s place at the end; after an error, it is gone."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
