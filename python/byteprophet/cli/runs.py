"""The run that a command is given: a run directory, or the newest one in a directory of runs."""

from __future__ import annotations

from pathlib import Path

from byteprophet.errors import tell
from byteprophet.observe.newest_run import newest_run

RUN_HELP = "A run directory, or a directory of runs, of which the newest one is taken."


def run_meant(path: Path) -> Path:
    """The run in ``path``, which is named if it is another directory. Raises ``UserError``."""
    found = newest_run(path)
    if found != path:
        tell(f"run {found}")
    return found


def run_or_file(path: Path) -> Path:
    """``path`` if it is a file, or else the run that is meant. Raises ``UserError``."""
    return run_meant(path) if path.is_dir() else path
