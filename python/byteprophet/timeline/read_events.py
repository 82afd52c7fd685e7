"""Reads files of events, with all that can be wrong with them told in one line each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from byteprophet.errors import UserError
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
_FARTHEST_NS = 2**62
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # of an Arrow stream that was closed


def load_events(path: Path) -> Events:
    """The events in the file at ``path``, up to where it was cut off.

    UserError in one line if it is not such a file, is damaged, or says what cannot be.
    """
    import pyarrow as pa

    try:
        with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
            schema = stream.schema
            number, table, origin = _header(path, schema.metadata or {})
            columns = [c for c in table.columns if number == SCHEMA or c not in table.added]
            _check_columns(path, schema, table, columns)
            whole = _ends(path)
            batches, lost = _batches(path, stream, number == SCHEMA, whole)
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file") from None
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = (str(error).splitlines() or ["it is empty"])[0]
        raise UserError(f"{path}: is not a file of events: {reason}") from None
    content = pa.Table.from_batches(batches, schema)
    rows = np.zeros(len(content), table.dtype)
    for name in (*columns, table.text) if table.text else columns:
        if content.column(name).null_count:
            raise UserError(f"{path}: column {name}: has empty values")
    for name in columns:
        rows[name] = content.column(name).to_numpy()
    names = _names(content, table, rows)
    _check_times(path, table, rows)
    for name, limit in table.below:
        if (highest := int(rows[name].max(initial=0))) >= limit:
            raise UserError(f"{path}: column {name}: {highest}: must be below {limit}")
    return Events(table, origin, rows, names, lost, whole)


def _ends(path: Path) -> bool:
    """Whether the file was closed by who wrote it."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - len(_END)))
        return file.read() == _END


def load_rank(run_directory: Path, table: TableKind, rank: int) -> Events:
    """The events of the process of rank ``rank``, in all its lives; UserError if it has none."""
    paths = sorted((run_directory / "events").glob(f"*{SUFFIX}"))
    # What later lives carry on is told by all tables together.
    if not any(LIFE in path.name for path in paths):
        paths = [path for path in paths if path.name.startswith(f"{table.name}-")]
    for events in join_lives([load_events(path) for path in paths]):
        if events.table is table and events.origin.rank == rank:
            return events
    raise UserError(
        f"{run_directory / 'events'}: has no {table.name} of rank {rank}: run the job with --record"
    )


def load_run(run_directory: Path) -> list[Events]:
    """All events of a run, of all lives, sorted by table and role; UserError if there are none."""
    paths = sorted((run_directory / "events").glob(f"*{SUFFIX}"))
    if not paths:
        raise UserError(f"{run_directory}: has no recorded events: run the job with --record")
    return join_lives([load_events(path) for path in paths])


def _batches(path: Path, stream: Any, with_checksums: bool, whole: bool) -> tuple[list[Any], int]:
    """All batches, and how many rows were lost between them; of a file that is cut off the first.

    UserError for a damaged one.
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
            return batches, lost  # cut off in the midst of a batch
        about = metadata or {}
        lost_here = int(about.get(b"lost", 0))
        if with_checksums and about.get(b"crc32") != str(checksum(batch, lost_here)).encode():
            raise _damaged(path, len(batches))
        batches.append(batch)
        lost += lost_here


def _damaged(path: Path, batch: int) -> UserError:
    return UserError(f"{path}: is damaged: batch {batch} is not as it was written")


def _header(path: Path, metadata: Mapping[bytes, bytes]) -> tuple[int, TableKind, Origin]:
    try:
        header = json.loads(metadata[METADATA])
        schema, table = header.pop("schema"), header.pop("table")
        if schema not in (_OLDER, SCHEMA):
            raise UserError(f"{path}: schema {schema!r}: this version reads {_OLDER} and {SCHEMA}")
        if table not in TABLES:
            raise UserError(f"{path}: table {table!r}: must be one of {', '.join(TABLES)}")
        origin = Origin(**{each.name: header.pop(each.name) for each in fields(Origin)}, **header)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UserError(f"{path}: is not a file of events: its metadata says nothing") from None
    for name, kind in (("role", str), ("machine", str), ("monotonic_ns", int), ("unix_ns", int)):
        if type(getattr(origin, name)) is not kind:
            raise UserError(f"{path}: {name} {getattr(origin, name)!r}: must be of {kind.__name__}")
    if type(origin.rank) is not int or not 0 <= origin.rank <= _HIGHEST_RANK:
        raise UserError(f"{path}: rank {origin.rank!r}: must be from 0 to {_HIGHEST_RANK}")
    for name in ("monotonic_ns", "unix_ns"):
        if abs(getattr(origin, name)) > _FARTHEST_NS:
            raise UserError(f"{path}: {name} {getattr(origin, name)}: is no time")
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
    """Names by index; where the index is not in the file, it is made, and set in ``rows``."""
    if not table.text or not len(rows):
        return {}
    texts = columns.column(table.text).combine_chunks().dictionary_encode()
    known: list[str] = texts.dictionary.to_pylist()
    positions: npt.NDArray[np.int32] = texts.indices.to_numpy()
    if "name" in (table.dtype.names or ()):
        rows["name"] = positions
        return dict(enumerate(known))
    indices, first = np.unique(table.name_indices(rows), return_index=True)
    pairs = zip(indices.tolist(), positions[first].tolist(), strict=True)
    return {index: known[position] for index, position in pairs if known[position]}


def _check_times(path: Path, table: TableKind, rows: Rows) -> None:
    for before, after in table.orders:
        known = (rows[before] != 0) & (rows[after] != 0)
        wrong = np.flatnonzero(known & (rows[before] > rows[after]))
        if wrong.size:
            row = int(wrong[0])
            raise UserError(
                f"{path}: row {row}: {after} {rows[after][row]} is before {before} "
                f"{rows[before][row]}"
            )
