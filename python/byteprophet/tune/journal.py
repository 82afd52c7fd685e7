"""``tuning.jsonl`` in the run directory: the trials, one JSON object per line.

Rank 0 writes each line at once, so a job that is ended early keeps its trials. Format:
docs/formats.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from byteprophet.errors import UserError
from byteprophet.input_files import LARGEST_LOG_BYTES, has_schema, parse_json, read_bytes
from byteprophet.whole_files import AppendedFile, OneWarning

NAME = "tuning.jsonl"
SCHEMA = 1


class Journal:
    """Appends lines to the file in ``directory``; None: writes no file."""

    def __init__(self, directory: Path | None) -> None:
        self._path = None if directory is None else directory / NAME
        self._or_else = OneWarning("trials are not saved; training continues")

    def write(self, **fields: Any) -> None:
        """Write one line. If that fails, warn and write no more; training continues."""
        if self._path is None:
            return
        path, self._path = self._path, None
        with self._or_else.instead():
            file = AppendedFile(path)
            try:
                file.append((json.dumps({"schema": SCHEMA, **fields}) + "\n").encode())
            finally:
                file.close()
            self._path = path


def read_journal(directory: Path) -> list[dict[str, Any]]:
    """All lines of the run in ``directory``; UserError names what is not one."""
    path = directory / NAME
    entries = []
    for number, line in enumerate(read_bytes(path, LARGEST_LOG_BYTES).splitlines(), 1):
        try:
            entry = parse_json(line)
        except ValueError as error:
            raise UserError(f"{path}: line {number}: {error}") from None
        if not has_schema(entry, SCHEMA):
            raise UserError(f"{path}: line {number}: schema is not {SCHEMA}")
        entries.append(entry)
    return entries
