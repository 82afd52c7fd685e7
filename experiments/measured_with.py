"""What the files of a directory were measured with, so that no script goes on with something else.

Scripts that go on where they stopped keep the runs of a directory and add to them. Runs of another
effort or of other code must not be among them. So the first step writes ``measured-with.json``, and
every later start is compared with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from byteprophet.bench.grid_jobs import code_version
from byteprophet.errors import UserError
from byteprophet.input_files import read_json
from byteprophet.whole_files import make_directory, write_whole

_FILE = "measured-with.json"


def check_measured_with(directory: Path, settings: Mapping[str, Any]) -> None:
    """Raise ``UserError`` if there are files of other ``settings`` or other code in a directory."""
    if not directory.is_dir() or not any(directory.iterdir()):
        return
    path = directory / _FILE
    was = read_json(path) if path.exists() else None
    if not isinstance(was, dict):
        raise UserError(f"{directory}: {_FILE} does not say with what it was measured: {_REMEDY}")
    differs = [name for name, value in _all(settings).items() if was.get(name) != value]
    if differs:
        raise UserError(f"{directory}: was begun with another {' and '.join(differs)}: {_REMEDY}")


def begin_with(directory: Path, settings: Mapping[str, Any]) -> None:
    """Make the directory if it is missing, and say what its files are measured with.

    Raises ``UserError`` as ``check_measured_with`` does.
    """
    check_measured_with(directory, settings)
    make_directory(directory)
    write_whole(directory / _FILE, json.dumps(_all(settings)) + "\n")


def _all(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {**settings, "code": code_version()}


_REMEDY = "use another --out, or remove it"
