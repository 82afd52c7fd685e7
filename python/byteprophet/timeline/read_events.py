"""Reads files of events. Every defect is reported in one line."""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from byteprophet.errors import UserError
from byteprophet.input_files import check_file, parse_json, whole_number
from byteprophet.timeline.events import (
    LIFE,
    METADATA,
    SCHEMA,
    SUFFIX,
    Events,
    Origin,
    arrow_schema,
    checksum,
)
from byteprophet.timeline.lives import join_lives
from byteprophet.timeline.tables import TABLES, Rows, TableKind

_OLDER = 2
_HIGHEST_RANK = 2**31 - 1
_FARTHEST_NS = 2**60  # of a monotonic clock: 36 years; sums with a wall clock's times fit in int64
_FARTHEST_UNIX_NS = 2**62
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # the last bytes of an Arrow stream that was closed


def load_events(path: Path) -> Events:
    """The events in the file at ``path``, up to where it was cut off.

    Raises ``UserError``, with one line, if it is no such file, is damaged, or has invalid values.
    """
    import pyarrow as pa

    check_file(path)
    try:
        content = _mapped(path)
        # Batches are small: using threads for their columns costs more than it gains.
        options = pa.ipc.IpcReadOptions(use_threads=False)
        with pa.ipc.open_stream(content, options=options) as stream:
            schema = stream.schema
            number, table, origin = _header(path, schema.metadata or {})
            columns = [c for c in table.columns if number == SCHEMA or c not in table.added]
            _check_columns(path, schema, table, columns)
            whole = content[-len(_END) :] == _END
            batches, lost = _batches(path, stream, number == SCHEMA, whole)
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = (str(error).splitlines() or ["it is empty"])[0]
        raise UserError(f"{path}: is not a file of events: {reason}") from None
    found = pa.Table.from_batches(batches, schema)
    rows = np.zeros(len(found), table.dtype)
    for name in (*columns, table.text) if table.text else columns:
        if found.column(name).null_count:
            raise UserError(f"{path}: column {name}: has empty values")
    values = {name: found.column(name).to_numpy() for name in columns}
    for name in columns:
        rows[name] = values[name]
    names = _names(found, table, rows)
    _check_times(path, table, values)
    for name, limit in table.below:
        if (highest := int(rows[name].max(initial=0))) >= limit:
            raise UserError(f"{path}: column {name}: {highest}: must be below {limit}")
    return Events(table, origin, rows, names, lost, whole)


def _mapped(path: Path) -> mmap.mmap:
    """Maps the content of a file into memory. Raises ``ValueError`` if it is empty."""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def load_rank(run_directory: Path, table: TableKind, rank: int) -> Events:
    """The events of ``table`` of rank ``rank``, from all its lives.

    Raises ``UserError`` if there are none.
    """
    paths = sorted((run_directory / "events").glob(f"*{SUFFIX}"))
    # With later lives, all tables are needed to continue the numbers of earlier ones.
    if not any(LIFE in path.name for path in paths):
        paths = [path for path in paths if path.name.startswith(f"{table.name}-")]
    for events in _joined(run_directory, paths):
        if events.table is table and events.origin.rank == rank:
            return events
    raise UserError(
        f"{run_directory / 'events'}: has no {table.name} of rank {rank}: run the job with --record"
    )


def load_run(run_directory: Path) -> list[Events]:
    """All events of a run, from all lives, sorted by table and role.

    Raises ``UserError`` if there are none.
    """
    paths = sorted((run_directory / "events").glob(f"*{SUFFIX}"))
    if not paths:
        raise UserError(
            f"{run_directory}: has no recorded events: run the job with --record; if it ran so, "
            "its script trained nothing that is recorded"
        )
    return _joined(run_directory, paths)


def _joined(run_directory: Path, paths: Sequence[Path]) -> list[Events]:
    """The tables in the files at ``paths``, each role's lives joined."""
    files = [load_events(path) for path in paths]
    try:
        return join_lives(files)
    except UserError as error:
        raise UserError(f"{run_directory}: {error}") from None


def _batches(path: Path, stream: Any, with_checksums: bool, whole: bool) -> tuple[list[Any], int]:
    """All batches, and how many rows were lost between them.

    If the file is cut off, returns the batches before that place. Raises ``UserError`` if a batch
    is damaged.
    """
    import pyarrow as pa

    batches: list[Any] = []
    lost = 0
    while True:
        try:
            batch, metadata = stream.read_next_batch_with_custom_metadata()
            batch.validate(full=True)
        except StopIteration:
            return batches, lost
        except (OSError, ValueError, pa.ArrowException):
            if whole:
                raise _damaged(path, len(batches)) from None
            return batches, lost  # the file was cut off within a batch
        about = metadata or {}
        lost_here = _lost(path, about.get(b"lost", b"0"))
        if with_checksums and about.get(b"crc32") != str(checksum(batch, lost_here)).encode():
            raise _damaged(path, len(batches))
        batches.append(batch)
        lost += lost_here


def _lost(path: Path, text: bytes) -> int:
    number = whole_number(text.decode("ascii", "replace"))
    if number is None:
        raise UserError(f"{path}: is damaged: a number of lost rows is {text[:40]!r}")
    return number


def _damaged(path: Path, batch: int) -> UserError:
    return UserError(f"{path}: is damaged: batch {batch} is not as it was written")


def _header(path: Path, metadata: Mapping[bytes, bytes]) -> tuple[int, TableKind, Origin]:
    try:
        header = parse_json(metadata[METADATA])
        schema, table = header.pop("schema"), header.pop("table")
        if schema not in (_OLDER, SCHEMA):
            raise UserError(f"{path}: schema {schema!r}: this version reads {_OLDER} and {SCHEMA}")
        if table not in TABLES:
            raise UserError(f"{path}: table {table!r}: must be one of {', '.join(TABLES)}")
        origin = Origin(**{each.name: header.pop(each.name) for each in fields(Origin)}, **header)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UserError(
            f"{path}: is not a file of events: its metadata does not describe it"
        ) from None
    for name, kind in (("role", str), ("machine", str), ("monotonic_ns", int), ("unix_ns", int)):
        if type(getattr(origin, name)) is not kind:
            raise UserError(f"{path}: {name} {getattr(origin, name)!r}: must be of {kind.__name__}")
    if type(origin.rank) is not int or not 0 <= origin.rank <= _HIGHEST_RANK:
        raise UserError(f"{path}: rank {origin.rank!r}: must be from 0 to {_HIGHEST_RANK}")
    for name, farthest in (("monotonic_ns", _FARTHEST_NS), ("unix_ns", _FARTHEST_UNIX_NS)):
        if abs(getattr(origin, name)) > farthest:
            raise UserError(f"{path}: {name} {getattr(origin, name)}: is not a valid time")
    return schema, TABLES[table], origin


def _check_columns(path: Path, schema: Any, table: TableKind, columns: Sequence[str]) -> None:
    for expected in arrow_schema(table):
        if expected.name not in (*columns, table.text):
            continue
        if expected.name not in schema.names:
            raise UserError(f"{path}: column {expected.name} is missing")
        found = schema.field(expected.name).type
        if found != expected.type:
            raise UserError(f"{path}: column {expected.name}: is {found}, must be {expected.type}")


def _names(columns: Any, table: TableKind, rows: Rows) -> dict[int, str]:
    """Names by index. If rows have a field ``name``, numbers the names and sets it in ``rows``."""
    if not table.text or not len(rows):
        return {}
    texts = columns.column(table.text)
    if "name" in (table.dtype.names or ()):
        # dictionary_encode is not used, because pyarrow would import all of its functions for it.
        known: dict[str, int] = {}
        rows["name"] = [known.setdefault(text, len(known)) for text in texts.to_pylist()]
        return {index: text for text, index in known.items()}
    indices, first = np.unique(table.name_indices(rows), return_index=True)
    pairs = zip(indices.tolist(), first.tolist(), strict=True)
    return {index: text for index, row in pairs if (text := texts[row].as_py())}


def _check_times(path: Path, table: TableKind, values: Mapping[str, npt.NDArray[np.int64]]) -> None:
    """Raises ``UserError`` for invalid times or a wrong order of times.

    ``values`` are the file's columns by name. Columns that it does not have are not checked.
    """
    for name in table.times:
        if name not in values or not len(values[name]):
            continue
        if values[name].max() > _FARTHEST_NS or values[name].min() < -_FARTHEST_NS:
            far = (values[name] > _FARTHEST_NS) | (values[name] < -_FARTHEST_NS)
            row = int(np.argmax(far))
            raise UserError(f"{path}: row {row}: {name} {values[name][row]}: is not a valid time")
    for before, after in table.orders:
        if before not in values or after not in values:
            continue
        wrong = values[before] > values[after]
        wrong &= (values[before] != 0) & (values[after] != 0)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise UserError(
                f"{path}: row {row}: {after} {values[after][row]} is before {before} "
                f"{values[before][row]}"
            )
