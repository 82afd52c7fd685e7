"""Results of a grid: a file with one JSON line per job, to which lines are only appended.

A line is on disk before the next job starts. A run that is killed leaves at most one incomplete
line at the end. Reading ignores it, and the next write removes it. A lock on the file ensures that
only one process writes at a time.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from byteprophet.errors import UserError
from byteprophet.input_files import LARGEST_LOG_BYTES, has_schema, parse_json, read_bytes
from byteprophet.profile.model import first_error
from byteprophet.whole_files import AppendedFile, make_directory, writing

SCHEMA = 1
FILE = "jobs.jsonl"

Record = dict[str, Any]
Key = tuple[str, str, str, int]
"""Of a job: phase, cell, variant, round."""

_Whole = Annotated[int, Field(ge=0, le=2**62)]
_Time = Annotated[int, Field(ge=1, le=2**62)]
_Share = Annotated[float, Field(ge=0, le=1e6)]


class _Fields(BaseModel):
    """The required fields of a record, and the types of the optional ones."""

    model_config = ConfigDict(strict=True, extra="allow")

    phase: str
    cell: str
    variant: str
    round: int
    fingerprint: str
    code: str
    runtime: str = ""
    scheduler: str | None = None
    settings: dict[str, int] = Field(default_factory=dict)
    tuner: bool = False
    environment: dict[str, str] = Field(default_factory=dict)
    machine: dict[str, Any] = Field(default_factory=dict)
    iteration_ns: Annotated[list[_Time], Field(min_length=1)] = Field(default=[1])
    bound_ns: _Time = 1
    machine_cpu_fraction: _Share = 0.0
    saturated_fraction: _Share = 0.0
    job_cpu_fraction: _Share = 0.0
    worker_cpu_fraction: list[_Share] = Field(default_factory=list)
    sent_bytes: _Whole = 0
    received_bytes: _Whole = 0
    parameters_sha256: str = ""
    run: Annotated[str, Field(pattern="^[^/]+$")] = "run"


_ALWAYS = [name for name, field in _Fields.model_fields.items() if field.is_required()]


def read_records(directory: Path) -> list[Record]:
    """The records in ``directory``, oldest first; none if there is no file."""
    path = directory / FILE
    if not path.exists():
        return []
    content = read_bytes(path, LARGEST_LOG_BYTES)
    whole, _, _torn = content.rpartition(b"\n")
    return [
        _record(path, number, line) for number, line in enumerate(whole.split(b"\n"), 1) if line
    ]


def machines_of(records: Iterable[Record]) -> list[dict[str, Any]]:
    """The machines that measured ``records``, each once. Older records do not name theirs."""
    found: list[dict[str, Any]] = []
    for record in records:
        if "machine" in record and record["machine"] not in found:
            found.append(record["machine"])
    return found


def turn_of(record: Record) -> tuple[str, int, str, str]:
    """Records can be compared if these are equal: round, phase, code and machine."""
    machine = json.dumps(record.get("machine"), sort_keys=True)
    return record["phase"], record["round"], record["code"], machine


def key_of(record: Record) -> Key:
    """What identifies the record's job, like ``Job.key``."""
    return record["phase"], record["cell"], record["variant"], record["round"]


class Store:
    """The file of ``directory``, open for appending."""

    def __init__(self, directory: Path) -> None:
        self.records = read_records(directory)
        make_directory(directory)
        self._file = AppendedFile(directory / FILE)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise UserError(f"{directory}: another run is writing to it; wait for it") from None
        self._cut_torn_line(directory / FILE)

    def add(self, record: Record) -> None:
        """Append one record; it is on disk on return."""
        self._file.append(json.dumps({"schema": SCHEMA, **record}).encode() + b"\n")
        with writing(self._file.path):
            os.fsync(self._file.fileno())
        self.records.append(record)

    def close(self) -> None:
        """Close the file, so that other processes can write to it."""
        self._file.close()

    def _cut_torn_line(self, path: Path) -> None:
        content = path.read_bytes()
        with writing(path):
            os.ftruncate(self._file.fileno(), content.rfind(b"\n") + 1)


def _record(path: Path, number: int, line: bytes) -> Record:
    try:
        record = parse_json(line)
    except ValueError as error:
        raise UserError(f"{path}: line {number} is not JSON: {error}; remove the line") from None
    if not isinstance(record, dict) or not has_schema(record, SCHEMA):
        raise UserError(f"{path}: line {number}: schema is not {SCHEMA}; choose another --out")
    del record["schema"]
    missing = [name for name in _ALWAYS if name not in record]
    if missing:
        raise UserError(f"{path}: line {number}: {missing[0]} is missing; remove the line")
    try:
        _Fields.model_validate(record)
    except ValidationError as error:
        raise UserError(f"{path}: line {number}: {first_error(error)}; remove the line") from None
    return record
