"""The run that a command is given: a run directory, or the newest one in a directory of runs."""

from __future__ import annotations

from pathlib import Path

from byteprophet.cli.output import tell
from byteprophet.observe.newest_run import is_run, newest_in

RUN_HELP = "A run directory, or a directory of runs, of which the newest one is taken."


def run_meant(path: Path) -> Path:
    """The newest run in ``path``, which is then named, or else ``path``.

    What is no run at all is for the command to refuse, which knows what it needs.
    """
    found = None if is_run(path) else newest_in(path)
    if found is None:
        return path
    tell(f"run {found}")
    return found
