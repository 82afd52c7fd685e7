"""``tuning.jsonl`` in the run directory: what was tried, one JSON object per line.

Written by rank 0, line by line, so that a job that is ended leaves what it knew. Format:
docs/formats.md.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from byteprophet.errors import UserError

NAME = "tuning.jsonl"
SCHEMA = 1


class Journal:
    """``directory`` None: nobody asked for a file."""

    def __init__(self, directory: Path | None) -> None:
        self._path = None if directory is None else directory / NAME

    def write(self, **fields: Any) -> None:
        """One line. One that cannot be written is the last: a warning, as training goes on."""
        if self._path is None:
            return
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"schema": SCHEMA, **fields}) + "\n")
        except OSError as error:
            print(f"byteprophet: warning: {self._path}: {error.strerror}", file=sys.stderr)
            self._path = None


def read_journal(directory: Path) -> list[dict[str, Any]]:
    """All lines of the run in ``directory``; UserError names what is not one."""
    path = directory / NAME
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    entries = []
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
        except ValueError as error:
            raise UserError(f"{path}: line {number}: {error}") from None
        if not isinstance(entry, dict) or entry.get("schema") != SCHEMA:
            raise UserError(f"{path}: line {number}: schema is not {SCHEMA}")
        entries.append(entry)
    return entries
