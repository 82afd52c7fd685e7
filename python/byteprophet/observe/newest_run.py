"""Which run a user means who names a run directory, or a directory in which runs are."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from byteprophet.errors import UserError
from byteprophet.observe.live import DIRECTORY

_OF_A_RUN = ("events", DIRECTORY, "control.jsonl", "network", "profile.json")
"""What is left of a run without its ``config.toml``. Directories of runs may have such files."""


def newest_run(directory: Path) -> Path:
    """``directory`` if it is a run's, or else the newest run in it. Raises ``UserError``."""
    if not directory.is_dir():
        raise UserError(f"{directory}: there is no such run directory")
    if (directory / "config.toml").exists():
        return directory
    found = _newest_in(directory)
    if found is not None:
        return found
    if any((directory / name).exists() for name in _OF_A_RUN):
        return directory
    raise UserError(f"{directory}: is neither a run directory nor has any in it")


def _newest_in(directory: Path) -> Path | None:
    found: list[tuple[float, Path]] = []
    for config in directory.glob("*/config.toml"):
        with suppress(OSError):
            found.append((config.stat().st_mtime, config.parent))
    return max(found)[1] if found else None
