"""Workload files: TOML in and out.

    name = "two-towers"
    batch_size = 32                       # samples per worker and iteration
    [[tensor]]                            # in forward order
    name = "embed.weight"
    size_bytes = 4194304                  # float32: a multiple of 4
    forward_ns = 1500000                  # time of the layer that needs it
    backward_ns = 3000000
    burst = 3                             # optional

Anything else in the file is an error, so that a misspelt ``burst`` is not silently ignored.
Errors are ``UserError`` and name file, tensor (counted from 1) and field.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tomli_w

from byteprophet.errors import UserError
from byteprophet.input_files import parse_table, read_text
from byteprophet.workload.model import Tensor, Workload, tensor_label

_WORKLOAD_FIELDS = ("name", "batch_size", "tensor")
_TENSOR_FIELDS = ("name", "size_bytes", "forward_ns", "backward_ns")
_OPTIONAL_TENSOR_FIELDS = ("burst",)


def read_toml(path: str | Path) -> Workload:
    """The workload in the file at ``path``."""
    return parse_toml(read_text(path), source=str(path))


def parse_toml(text: str, source: str) -> Workload:
    """The workload written in ``text``; ``source`` is what errors call it."""
    table = parse_table(text, source)
    try:
        check_fields(table, _WORKLOAD_FIELDS)
        entries = table["tensor"]
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise UserError("tensor must be tables, each under a line [[tensor]]")
        return Workload(
            name=table["name"],
            batch_size=table["batch_size"],
            tensors=tuple(_tensor(position, entry) for position, entry in enumerate(entries, 1)),
        )
    except UserError as error:
        raise UserError(f"{source}: {error}") from None


def to_toml(workload: Workload) -> str:
    """The text of a file from which ``parse_toml`` gives an equal workload."""
    parts = [tomli_w.dumps({"name": workload.name, "batch_size": workload.batch_size})]
    for tensor in workload.tensors:
        fields: dict[str, str | int] = {name: getattr(tensor, name) for name in _TENSOR_FIELDS}
        if tensor.burst is not None:
            fields["burst"] = tensor.burst
        parts.append("\n[[tensor]]\n" + tomli_w.dumps(fields))
    return "".join(parts)


def check_fields(
    table: Mapping[str, Any], required: Iterable[str], optional: Iterable[str] = ()
) -> None:
    """Refuse missing and unknown fields of a table."""
    required, known = list(required), [*required, *optional]
    for field in required:
        if field not in table:
            raise UserError(f"{field} is missing")
    for field in table:
        if field not in known:
            raise UserError(f"unknown field '{field}', known are {', '.join(known)}")


def _tensor(position: int, entry: Mapping[str, Any]) -> Tensor:
    name = entry.get("name")
    where = tensor_label(position, name) if isinstance(name, str) else f"tensor {position}"
    try:
        check_fields(entry, _TENSOR_FIELDS, _OPTIONAL_TENSOR_FIELDS)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    return Tensor(**entry)
