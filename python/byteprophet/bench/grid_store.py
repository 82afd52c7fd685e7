"""Results of a grid, one JSON line per job, only ever appended to.

A line is on disk before the next job starts. A run that is killed leaves at most one torn line, the
last, which is left out on reading and cut off before the next line is written. One process writes
at a time, which a lock on the file sees to.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from byteprophet.errors import UserError

SCHEMA = 1
FILE = "jobs.jsonl"
_FIELDS = ("phase", "cell", "variant", "round", "fingerprint", "code")

Record = dict[str, Any]


def read_records(directory: Path) -> list[Record]:
    """The records in ``directory``, oldest first; none where there is no file."""
    path = directory / FILE
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    whole, _, _torn = content.rpartition(b"\n")
    return [
        _record(path, number, line) for number, line in enumerate(whole.split(b"\n"), 1) if line
    ]


def machines_of(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Those that ``records`` were measured on, each once (there was no such field once)."""
    found: list[dict[str, Any]] = []
    for record in records:
        if "machine" in record and record["machine"] not in found:
            found.append(record["machine"])
    return found


def turn_of(record: Record) -> tuple[str, int, str, str]:
    """Two records can be compared if it is the same: of one round of a phase, code and machine."""
    machine = json.dumps(record.get("machine"), sort_keys=True)
    return record["phase"], record["round"], record["code"], machine


def key_of(record: Record) -> tuple[str, str, str, int]:
    """What the record is of, as ``Job.key``."""
    return record["phase"], record["cell"], record["variant"], record["round"]


class Store:
    """The file of ``directory``, open for appending."""

    def __init__(self, directory: Path) -> None:
        self.records = read_records(directory)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._file: IO[bytes] = (directory / FILE).open("ab")
        except OSError as error:
            raise UserError(f"{directory}: cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise UserError(f"{directory}: another run is writing to it; wait for it") from None
        self._cut_torn_line(directory / FILE)

    def add(self, record: Record) -> None:
        """Append one record; it is on disk on return."""
        self._file.write(json.dumps({"schema": SCHEMA, **record}).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.records.append(record)

    def close(self) -> None:
        """Give the file up to others."""
        self._file.close()

    def _cut_torn_line(self, path: Path) -> None:
        content = path.read_bytes()
        self._file.truncate(content.rfind(b"\n") + 1)


def _record(path: Path, number: int, line: bytes) -> Record:
    try:
        record = json.loads(line)
    except ValueError:
        raise UserError(f"{path}: line {number} is not JSON; remove the line") from None
    if not isinstance(record, dict) or record.pop("schema", None) != SCHEMA:
        raise UserError(f"{path}: line {number}: schema is not {SCHEMA}; choose another --out")
    for field in _FIELDS:
        if field not in record:
            raise UserError(f"{path}: line {number}: {field} is missing; remove the line")
    return record
