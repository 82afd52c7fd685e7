"""Files of events: one Arrow IPC stream per role and table, ``events/<table>-<role>.arrows``.

A stream can be read up to where it was cut off, so a process that is killed loses what it had not
handed over, and nothing before. Its schema has, as JSON under ``byteprophet`` in the metadata,

    {"schema": 3, "table": "transfers", "role": "worker-0", "rank": 0,
     "machine": "<boot id>", "monotonic_ns": ..., "unix_ns": ...}

``machine`` tells whose monotonic clock it is (processes on one machine share it), ``monotonic_ns``
and ``unix_ns`` are one moment on both clocks. A batch has in its metadata ``crc32``, of what it
says, and may have ``lost``: how many rows were recorded and lost in front of it, because nobody
took them in time. Schema 2, without checksums and some columns, is read, too.

Columns are the fields of the table's rows (``tables.py``), and their names as text.
``read_events.py`` reads them.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from byteprophet.timeline.tables import Rows, TableKind

SCHEMA = 3
METADATA = b"byteprophet"
SUFFIX = ".arrows"
LIFE = "~"  # in names of files, before the number of the role's life; the first has none

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def _machine() -> str:
    return _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""


@dataclass(frozen=True)
class Origin:
    """Who recorded, and on which clock."""

    role: str
    rank: int
    machine: str = field(default_factory=_machine)
    monotonic_ns: int = field(default_factory=time.monotonic_ns)
    unix_ns: int = field(default_factory=time.time_ns)


@dataclass(frozen=True)
class Events:
    """The rows of one file. ``names``: by the index that ``table.name_indices`` gives.

    ``lost``: rows that are missing. ``whole``: the file was closed by who wrote it.
    """

    table: TableKind
    origin: Origin
    rows: Rows
    names: Mapping[int, str]
    lost: int = 0
    whole: bool = True


def events_path(run_directory: Path, table: TableKind, role: str) -> Path:
    """Where ``role`` saves its events of ``table``."""
    return run_directory / "events" / f"{table.name}-{role}{SUFFIX}"


def new_path(run_directory: Path, table: TableKind, role: str) -> Path:
    """As ``events_path``; numbered where the role has been there before, as after a suspension."""
    path, life = events_path(run_directory, table, role), 1
    while path.exists():
        life += 1
        path = events_path(run_directory, table, f"{role}{LIFE}{life}")
    return path


class EventWriter:
    """Appends to a file. What ``write`` was given is in the file when it returns.

    pyarrow is imported here, as it takes a moment, and only who saves events needs it.
    """

    def __init__(self, path: Path, table: TableKind, origin: Origin) -> None:
        import pyarrow as pa

        self._pa = pa
        self._table = table
        header = {"schema": SCHEMA, "table": table.name, **asdict(origin)}
        schema = arrow_schema(table).with_metadata({METADATA: json.dumps(header)})
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("xb", buffering=0)
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        self._stream = pa.ipc.new_stream(self._file, schema, options=options)
        self._schema = schema
        # The schema is written with the first batch: so the file says what it is from the start.
        self.write(np.zeros(0, table.dtype), {})

    def write(self, rows: Rows, names: Mapping[int, str], lost: int = 0) -> None:
        """Append ``rows``, with ``names`` by ``name_indices``, after ``lost`` ones."""
        pa = self._pa
        columns = [pa.array(np.ascontiguousarray(rows[name])) for name in self._table.columns]
        if self._table.text:
            indices = self._table.name_indices(rows).tolist()
            columns.append(pa.array([names.get(index, "") for index in indices], pa.string()))
        batch = pa.record_batch(columns, schema=self._schema)
        about = {"crc32": str(checksum(batch, lost))} | ({"lost": str(lost)} if lost else {})
        self._stream.write_batch(batch, custom_metadata=about)

    def close(self) -> None:
        """Mark the file as whole and close it; again: nothing happens."""
        if not self._file.closed:
            self._stream.close()
            self._file.close()


def save_events(path: Path, events: Events) -> None:
    """Write a file of ``events``."""
    writer = EventWriter(path, events.table, events.origin)
    writer.write(events.rows, events.names, events.lost)
    if events.whole:
        writer.close()


def checksum(batch: Any, lost: int) -> int:
    """Of all that a record batch says, and how many rows were lost in front of it."""
    value = zlib.crc32(f"{batch.num_rows} {lost}".encode())
    for column in batch.columns:
        for buffer in column.buffers():
            if buffer is not None:
                value = zlib.crc32(buffer, value)
    return value


def arrow_schema(table: TableKind) -> Any:
    """Of the files of ``table``, a ``pyarrow.Schema``."""
    import pyarrow as pa

    fields = [(name, pa.from_numpy_dtype(table.dtype[name])) for name in table.columns]
    if table.text:
        fields.append((table.text, pa.string()))
    return pa.schema(fields)
