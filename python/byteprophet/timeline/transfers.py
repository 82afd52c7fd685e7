"""Transfers: the way of each partition in each iteration, as the plug-in records it.

A file of transfers is Parquet with the fields of ``TRANSFER`` as columns, a column ``tensor`` with
the tensor's name ("" if it was not declared by the front), and ``{"schema": 1, "rank": ...}`` as
JSON under the key ``byteprophet`` of its metadata. Times are those of the worker's monotonic clock.

    ready_ns   the policy was offered it       sent_ns    the PUSH loop took it
    acked_ns   the server has the push         pulled_ns  the answer to the pull is here

``iteration`` counts from 1; what was ready before the first iteration began (broadcasts of
parameters) has 0. A priority from 0 up marks what has no place in the forward order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from byteprophet.errors import UserError

SCHEMA = 1

TRANSFER = np.dtype(
    [
        ("key", np.uint64),
        ("size_bytes", np.uint64),
        ("ready_ns", np.int64),
        ("sent_ns", np.int64),
        ("acked_ns", np.int64),
        ("pulled_ns", np.int64),
        ("server", np.uint32),
        ("iteration", np.uint32),
        ("priority", np.int32),
        ("reserved", np.uint32),
    ]
)
"""One transfer, 64 bytes, as ``byteprophet::Transfer`` of native/plugin/transfers.h."""

Transfers = npt.NDArray[np.void]

_COLUMNS = tuple(name for name in TRANSFER.names or () if name != "reserved")
_METADATA = b"byteprophet"


def tensor_of(transfers: Transfers) -> npt.NDArray[np.uint64]:
    """The number of each transfer's tensor."""
    numbers: npt.NDArray[np.uint64] = transfers["key"] >> np.uint64(16)
    return numbers


@dataclass(frozen=True)
class Recording:
    """The transfers of one worker process, and the names of their tensors by number."""

    rank: int
    transfers: Transfers
    names: Mapping[int, str]


class Writer:
    """Writes transfers to a file as they come; the file is whole only after ``close``.

    pyarrow is imported here, as it takes a moment, and only who saves transfers needs it.
    """

    def __init__(self, path: Path, rank: int) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._pa = pa
        fields = [(name, pa.from_numpy_dtype(TRANSFER[name])) for name in _COLUMNS]
        metadata = {_METADATA: json.dumps({"schema": SCHEMA, "rank": rank})}
        self._schema = pa.schema([*fields, ("tensor", pa.string())], metadata=metadata)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._partial = path.with_suffix(".partial")
        self._file = pq.ParquetWriter(self._partial, self._schema)

    def write(self, transfers: Transfers, names: Mapping[int, str]) -> None:
        """Append ``transfers``; ``names`` of tensors by number."""
        columns = [self._pa.array(np.ascontiguousarray(transfers[name])) for name in _COLUMNS]
        texts = [names.get(number, "") for number in tensor_of(transfers).tolist()]
        table = self._pa.table([*columns, self._pa.array(texts)], schema=self._schema)
        self._file.write_table(table)

    def close(self) -> None:
        """Complete the file and give it its name."""
        self._file.close()
        self._partial.replace(self._path)


def save(path: Path, recording: Recording) -> None:
    """Write ``recording`` to ``path``."""
    writer = Writer(path, recording.rank)
    writer.write(recording.transfers, recording.names)
    writer.close()


def load(path: Path) -> Recording:
    """The recording in the file at ``path``; ``UserError`` in one line if it is not one."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file") from None
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path}: is not a file of transfers: {reason}") from None
    rank = _rank(path, table.schema.metadata or {})
    transfers = np.zeros(table.num_rows, TRANSFER)
    for name in _COLUMNS:
        transfers[name] = _column(path, table, name, pa.from_numpy_dtype(TRANSFER[name]))
    texts = _column(path, table, "tensor", pa.string())
    numbers = tensor_of(transfers)
    known, first = np.unique(numbers, return_index=True)
    names = {int(n): str(texts[at]) for n, at in zip(known, first, strict=True) if texts[at]}
    _check_times(path, transfers)
    return Recording(rank, transfers, names)


def _rank(path: Path, metadata: Mapping[bytes, bytes]) -> int:
    try:
        header = json.loads(metadata[_METADATA])
        schema, rank = header["schema"], header["rank"]
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{path}: is not a file of transfers: its metadata says nothing") from None
    if schema != SCHEMA:
        raise UserError(f"{path}: schema {schema!r}: this version reads {SCHEMA}")
    if type(rank) is not int or rank < 0:
        raise UserError(f"{path}: rank {rank!r}: must be an integer from 0")
    return rank


def _column(path: Path, table: Any, name: str, expected: Any) -> npt.NDArray[Any]:
    if name not in table.column_names:
        raise UserError(f"{path}: column {name} is missing")
    column = table.column(name)
    if column.type != expected:
        raise UserError(f"{path}: column {name}: is {column.type}, must be {expected}")
    if column.null_count:
        raise UserError(f"{path}: column {name}: has empty values")
    values: npt.NDArray[Any] = column.to_numpy()
    return values


_ORDER = (("ready_ns", "sent_ns"), ("sent_ns", "acked_ns"), ("acked_ns", "pulled_ns"))


def _check_times(path: Path, transfers: Transfers) -> None:
    for before, after in _ORDER:
        wrong = np.flatnonzero(transfers[before] > transfers[after])
        if wrong.size:
            row = int(wrong[0])
            raise UserError(
                f"{path}: row {row}: {after} {transfers[after][row]} is before {before} "
                f"{transfers[before][row]}"
            )
