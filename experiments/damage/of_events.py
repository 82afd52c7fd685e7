"""Damages files of events so that checksums still fit: rows, names, header, columns.

Damaged bytes alone would hardly come past the checksum of a batch.
"""

from __future__ import annotations

import io
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

from byteprophet.timeline.events import METADATA, checksum
from damage.of_bytes import damage_bytes
from damage.of_values import damage_json

_INTEGERS = (
    0,
    1,
    2,
    3,
    5,
    -1,
    -2,
    255,
    65535,
    2**16,
    2**20,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**40,
    2**50,
    2**60,
    2**62,
    2**63 - 1,
    -(2**63),
    2**64 - 1,
)
_TEXTS = ("", "x" * 100_000, "\0", "\x1b[2J", "'\"<script>&", "../..", "layer0", "\u202e")
_BYTES_TOO = 0.2


def damage_events(content: bytes, random: Random) -> bytes:
    """A whole file of events, or any bytes."""
    if random.random() < _BYTES_TOO:
        return damage_bytes(content, random)
    try:
        with pa.ipc.open_stream(io.BytesIO(content)) as stream:
            table = stream.read_all().combine_chunks()
            header: bytes = stream.schema.metadata[METADATA]
    except (pa.ArrowException, OSError, KeyError):
        return damage_bytes(content, random)
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    types = {name: table.schema.field(name).type for name in table.column_names}
    for _ in range(random.choice((1, 1, 2, 3))):
        how = random.random()
        if how < 0.15:
            header = damage_json(header, random)
        elif how < 0.65:
            _values(columns, types, random)
        elif how < 0.9:
            _rows(columns, random)
        else:
            _columns(columns, types, random)
    return _written(columns, types, header, random)


def _values(columns: dict[str, list[Any]], types: dict[str, Any], random: Random) -> None:
    """Other values in one column: in one row, in some, or in all."""
    name = random.choice(sorted(columns))
    values = columns[name]
    if not values:
        return
    share = random.choice((0.0, 0.1, 1.0))
    chosen = [row for row in range(len(values)) if random.random() < share]
    if random.random() < 0.4:  # what is plausible in itself comes further
        for row in chosen or [random.randrange(len(values))]:
            values[row] = random.choice(values)
        return
    if pa.types.is_string(types[name]):
        new: Any = random.choice(_TEXTS)
    elif pa.types.is_integer(types[name]):
        limits = np.iinfo(types[name].to_pandas_dtype())
        new = min(max(random.choice(_INTEGERS), limits.min), limits.max)
    else:
        return
    shifts = pa.types.is_integer(types[name]) and random.random() < 0.3
    for row in chosen or [random.randrange(len(values))]:
        value = values[row]
        if shifts and isinstance(value, int) and limits.min <= value + new <= limits.max:
            values[row] = value + new
        else:
            values[row] = new


def _rows(columns: dict[str, list[Any]], random: Random) -> None:
    """Other rows: none, fewer, doubled, in another order."""
    count = min((len(values) for values in columns.values()), default=0)
    order = list(range(count))
    how = random.randrange(5)
    if how == 0:
        order = []
    elif how == 1:
        order = [row for row in order if random.random() < 0.7]
    elif how == 2:
        order += random.choices(order, k=count) if order else []
    elif how == 3:
        random.shuffle(order)
    else:
        order = order[: random.randrange(count + 1)]
    for name, values in columns.items():
        columns[name] = [values[row] for row in order]


def _columns(columns: dict[str, list[Any]], types: dict[str, Any], random: Random) -> None:
    """A column that is missing, of another type, with empty values, or another's."""
    name = random.choice(sorted(columns))
    how = random.randrange(4)
    if how == 0 and len(columns) > 1:
        del columns[name], types[name]
    elif how == 1:
        columns[name] = [str(value) for value in columns[name]]
        types[name] = pa.string()
    elif how == 2:
        columns[name] = [None if random.random() < 0.1 else value for value in columns[name]]
    else:
        other = random.choice(sorted(columns))
        if types[other] == types[name]:
            columns[name] = list(columns[other])


def _written(
    columns: dict[str, list[Any]], types: dict[str, Any], header: bytes, random: Random
) -> bytes:
    """A file of one batch, or of two, with checksums that fit."""
    fields = [(name, types[name]) for name in columns]
    schema = pa.schema(fields).with_metadata({METADATA: header})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, schema) as stream:
        count = min((len(values) for values in columns.values()), default=0)
        middle = random.randrange(count + 1)
        for begin, end in ((0, middle), (middle, count)):
            arrays = [pa.array(values[begin:end], types[name]) for name, values in columns.items()]
            batch = pa.record_batch(arrays, schema=schema)
            lost = random.choice((1, -1, 2**70)) if random.random() < 0.05 else 0
            about = {"crc32": str(checksum(batch, lost)), **({"lost": str(lost)} if lost else {})}
            stream.write_batch(batch, custom_metadata=about)
    return sink.getvalue()
