"""The times of operators in jobs of ``hybrid.py``, which pace them later.

An operator is measured in its job: in iterations that compute, where one rank computes at a time.
So its tensors are in caches as far as the operators before have left them there, and nothing else
takes time from it. A table is a JSON file: for each operator, its time in nanoseconds and its
outputs.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hybrid_device import Described, Operation, Paced, is_paceable

from byteprophet.errors import UserError
from byteprophet.input_files import read_json
from byteprophet.whole_files import write_whole

_LEAST_NS = 10_000
"""Faster operators run for real."""
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
"""Of ``mallopt`` in glibc's ``malloc.h``."""

Table = dict[Operation, Paced]


class Turn:
    """Held by one process of those that name the same file; the others wait."""

    def __init__(self, path: Path) -> None:
        """Open the file, which is made if it is missing."""
        self._file = path.open("a")

    def __enter__(self) -> None:
        """Wait for it."""
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        """Give it to another one."""
        fcntl.flock(self._file, fcntl.LOCK_UN)


def keep_memory() -> None:
    """Keep the memory of freed tensors in this process, as PyTorch does on a GPU.

    Otherwise glibc gives large tensors back to the kernel, which clears new ones page by page. That
    doubles the time of operators that memory limits.
    """
    libc = ctypes.CDLL(None)
    for option, value in ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, 2**31 - 1), (_M_TOP_PAD, 1 << 26)):
        libc.mallopt(option, value)


def table_of(ranks: Sequence[Iterable[Any]]) -> Table:
    """The operators that can be paced.

    Args:
        ranks: what ``as_rows`` made of each rank's operators and their times, in nanoseconds. Of
            ranks that called the same, the least time counts.
    """
    outputs: dict[Operation, Described] = {}
    least_ns: dict[Operation, int] = {}
    for rows in ranks:
        outputs |= from_rows(rows)
        for operation, time_ns in numbers_from(rows).items():
            least_ns[operation] = min(time_ns, least_ns.get(operation, time_ns))
    found = {
        operation: Paced(least_ns[operation], made)
        for operation, made in outputs.items()
        if is_paceable(operation, made)
    }
    return {operation: paced for operation, paced in found.items() if paced.time_ns >= _LEAST_NS}


def fastest(tables: Sequence[Table]) -> Table:
    """The least of each time, as in ``byteprophet costs collect``: the machine's speed changes."""
    found: Table = {}
    for operation, paced in (item for table in tables for item in table.items()):
        found[operation] = min(paced, found.get(operation, paced))
    return found


def write_operators(path: Path, table: Mapping[Operation, Paced]) -> None:
    """Write a table."""
    rows = [[*operation, *paced] for operation, paced in table.items()]
    write_whole(path, json.dumps(rows) + "\n")


def read_operators(path: Path) -> Table:
    """The table in a file that ``write_operators`` has written."""
    rows = read_json(path)
    if not isinstance(rows, list) or any(
        not isinstance(row, list) or len(row) != 5 for row in rows
    ):
        raise UserError(f"{path}: not a table of operators: remove it")
    return {Operation(*_frozen(row[:3])): Paced(row[3], _frozen(row[4])) for row in rows}


def as_rows(called: Mapping[Operation, Described], numbers: Mapping[Operation, int]) -> list[Any]:
    """Operators, their outputs, and a number of each, as plain data."""
    return [[*operation, outputs, numbers[operation]] for operation, outputs in called.items()]


def numbers_from(rows: Iterable[Any]) -> dict[Operation, int]:
    """The number of each operator, from what ``as_rows`` made plain."""
    return {Operation(*_frozen(row[:3])): row[4] for row in rows}


def from_rows(rows: Iterable[Any]) -> dict[Operation, Described]:
    """Operators and their outputs, from what ``as_rows`` made plain."""
    return {Operation(*_frozen(row[:3])): _frozen(row[3]) for row in rows}


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
