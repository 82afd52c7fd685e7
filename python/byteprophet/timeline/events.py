"""Files of events: one Arrow IPC stream per role and table, ``events/<table>-<role>.arrows``.

A stream can be read up to where it was cut off, so a killed process only loses events that it had
not written yet. The metadata of its schema contains, as JSON under ``byteprophet``,

    {"schema": 3, "table": "transfers", "role": "worker-0", "rank": 0,
     "machine": "<boot id>", "monotonic_ns": ..., "unix_ns": ...}

``machine`` identifies the monotonic clock, which processes on one machine share. ``monotonic_ns``
and ``unix_ns`` are the same moment on both clocks. The metadata of a batch has ``crc32``, a
checksum of its content. It may have ``lost``: the number of recorded rows that were lost before
this batch, because nobody took them in time. Files of schema 2, which has no checksums and lacks
some columns, can also be read.

The columns are the fields of the table's rows (``tables.py``) and the rows' names as text.
``read_events.py`` reads these files.
"""

from __future__ import annotations

import io
import json
import time
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from byteprophet.timeline.tables import Rows, TableKind
from byteprophet.whole_files import AppendedFile, make_directory, writing

SCHEMA = 3
METADATA = b"byteprophet"
SUFFIX = ".arrows"
LIFE = "~"  # in file names, before the number of the role's life; the first life has none

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def _machine() -> str:
    return _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""


@dataclass(frozen=True)
class Origin:
    """The role that recorded, and its clock."""

    role: str
    rank: int
    machine: str = field(default_factory=_machine)
    monotonic_ns: int = field(default_factory=time.monotonic_ns)
    unix_ns: int = field(default_factory=time.time_ns)


@dataclass(frozen=True)
class Events:
    """The rows of one file. ``names``: by the indices that ``table.name_indices`` returns.

    ``lost``: the number of missing rows. ``whole``: the writer closed the file.
    """

    table: TableKind
    origin: Origin
    rows: Rows
    names: Mapping[int, str]
    lost: int = 0
    whole: bool = True


def events_path(run_directory: Path, table: TableKind, role: str) -> Path:
    """The path at which ``role`` saves its events of ``table``."""
    return run_directory / "events" / f"{table.name}-{role}{SUFFIX}"


def new_path(run_directory: Path, table: TableKind, role: str) -> Path:
    """Like ``events_path``, but numbered if the file exists already, e.g. after a suspension."""
    path, life = events_path(run_directory, table, role), 1
    with writing(path):
        while path.exists():
            life += 1
            path = events_path(run_directory, table, f"{role}{LIFE}{life}")
    return path


class EventWriter:
    """Appends events to a file. When ``write`` returns, its rows are in the file.

    Each batch is assembled in memory and appended whole, so that a full disk does not cut it in
    two. Raises ``NotWritten`` if a batch cannot be written; the file then keeps the earlier batches
    and can be read. Events leave the last room on a disk to the job's results, which are smaller.

    pyarrow is imported here because its import takes a moment and only writers of events need it.
    """

    def __init__(self, path: Path, table: TableKind, origin: Origin) -> None:
        import pyarrow as pa

        self._pa = pa
        self._table = table
        header = {"schema": SCHEMA, "table": table.name, **asdict(origin)}
        schema = arrow_schema(table).with_metadata({METADATA: json.dumps(header)})
        make_directory(path.parent)
        self._file = AppendedFile(path, new=True)
        self._pending = io.BytesIO()
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        self._stream = pa.ipc.new_stream(self._pending, schema, options=options)
        self._schema = schema
        # The schema is written with the first batch. An empty one identifies the file right away.
        self.write(np.zeros(0, table.dtype), {})

    def write(self, rows: Rows, names: Mapping[int, str], lost: int = 0) -> None:
        """Appends ``rows``; ``lost`` rows were lost before them. ``names``: by ``name_indices``."""
        pa = self._pa
        columns = [pa.array(np.ascontiguousarray(rows[name])) for name in self._table.columns]
        if self._table.text:
            indices = self._table.name_indices(rows).tolist()
            columns.append(pa.array([names.get(index, "") for index in indices], pa.string()))
        batch = pa.record_batch(columns, schema=self._schema)
        about = {"crc32": str(checksum(batch, lost))} | ({"lost": str(lost)} if lost else {})
        self._stream.write_batch(batch, custom_metadata=about)
        self._append(leave_room=True)

    def close(self) -> None:
        """Marks the file as whole and closes it. Further calls do nothing."""
        if not self._file.closed:
            try:
                self._stream.close()
                self._append()
            finally:
                self._file.close()

    def _append(self, leave_room: bool = False) -> None:
        """Moves pending data to the file."""
        piece = self._pending.getvalue()
        self._pending.seek(0)
        self._pending.truncate()
        self._file.append(piece, leave_room)


def save_events(path: Path, events: Events) -> None:
    """Writes ``events`` to a file."""
    writer = EventWriter(path, events.table, events.origin)
    writer.write(events.rows, events.names, events.lost)
    if events.whole:
        writer.close()


def checksum(batch: Any, lost: int) -> int:
    """CRC-32 of a record batch's content and of the number of rows lost before it."""
    value = zlib.crc32(f"{batch.num_rows} {lost}".encode())
    for column in batch.columns:
        for buffer in column.buffers():
            if buffer is not None:
                value = zlib.crc32(buffer, value)
    return value


def arrow_schema(table: TableKind) -> Any:
    """The ``pyarrow.Schema`` of the files of ``table``."""
    import pyarrow as pa

    fields = [(name, pa.from_numpy_dtype(table.dtype[name])) for name in table.columns]
    if table.text:
        fields.append((table.text, pa.string()))
    return pa.schema(fields)
