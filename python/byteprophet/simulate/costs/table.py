"""Measured costs of a device: of matrix products by shape, memory bandwidth, and launches.

A table comes from ``byteprophet costs collect``, as a JSON file, or from a package. What it lacks
stays as the cluster's description says.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from byteprophet.errors import UserError
from byteprophet.input_files import read_json
from byteprophet.simulate.compile.steps import CollectiveKind, Phase
from byteprophet.simulate.costs.reference_operators import names
from byteprophet.whole_files import write_whole

FORMAT, SCHEMA = "byteprophet-costs", 1
MeasuredCollective: TypeAlias = tuple[str, int, int, float]
"""Kind, number of ranks, bytes of the whole tensor, and time in ns."""
MeasuredOperator: TypeAlias = tuple[str, str, int, int, float]
"""Name, "forward" or "backward", rows, columns, and time in ns."""
_MOST_PRODUCTS, _MOST_COLLECTIVES, _MOST_OPERATORS = 1_000_000, 10_000, 1_000
_KINDS = tuple(kind.value for kind in CollectiveKind)
_PHASES = (Phase.FORWARD.value, Phase.BACKWARD.value)
_NUMBERS = (
    "memory_bytes_per_s",
    "attention_flops_per_s",
    "launch_ns",
    "node_bytes_per_s",
    "node_latency_ns",
)


@dataclass(frozen=True)
class CostTable:
    """Measured costs. A number that is 0 was not measured.

    Attributes:
        source: what was measured, with what, and where; for messages.
        products: rows, columns, inner size and time in ns of matrix products.
        memory_bytes_per_s: what a large operator reads and writes.
        attention_flops_per_s: of fused attention, forward, of large shapes.
        launch_ns: what the host needs per operator.
        node_bytes_per_s: the bus bandwidth of large collectives over all GPUs of a node.
        node_latency_ns: the time of a very small all-reduce.
        collectives: kind, number of ranks, bytes of the whole tensor and time in ns of collectives
            between ranks that are alone in their nodes.
        operators: name, "forward" or "backward", tokens, elements of each, and time in ns of
            operators that memory limits (``reference_operators.py``).
    """

    source: str
    products: tuple[tuple[int, int, int, float], ...] = ()
    memory_bytes_per_s: float = 0.0
    attention_flops_per_s: float = 0.0
    launch_ns: float = 0.0
    node_bytes_per_s: float = 0.0
    node_latency_ns: float = 0.0
    collectives: tuple[MeasuredCollective, ...] = ()
    operators: tuple[MeasuredOperator, ...] = ()


def write_table(path: Path, table: CostTable) -> None:
    """Write a table as JSON."""
    data = {"format": FORMAT, "schema": SCHEMA, **asdict(table)}
    write_whole(path, json.dumps(data) + "\n")


def read_table(path: Path) -> CostTable:
    """The table in a file.

    Raises:
        UserError: the file is not a table of costs, or a value is wrong.
    """
    data = read_json(path)
    if not isinstance(data, dict) or data.get("format") != FORMAT or data.get("schema") != SCHEMA:
        raise UserError(f"{path}: not a table of costs, as byteprophet costs collect writes it")
    source, rows = data.get("source"), data.get("products")
    if not isinstance(source, str) or not isinstance(rows, list) or len(rows) > _MOST_PRODUCTS:
        raise UserError(f"{path}: source must be a text, and products a list")
    products = []
    for row in rows:
        good = isinstance(row, list) and len(row) == 4 and all(map(_is_positive, row))
        if not good or any(type(size) is not int for size in row[:3]):
            raise UserError(f"{path}: products: {row!r}: expected [rows, columns, inner, ns]")
        products.append((row[0], row[1], row[2], float(row[3])))
    numbers: dict[str, float] = {}
    for name in _NUMBERS:
        value = data.get(name, 0)
        if value != 0 and not _is_positive(value):
            raise UserError(f"{path}: {name} is {value!r}: must be a positive number")
        numbers[name] = float(value)
    collectives = _collectives(path, data.get("collectives", []))
    operators = _operators(path, data.get("operators", []))
    return CostTable(
        source, tuple(products), **numbers, collectives=collectives, operators=operators
    )


def _operators(path: Path, rows: Any) -> tuple[MeasuredOperator, ...]:
    if not isinstance(rows, list) or len(rows) > _MOST_OPERATORS:
        raise UserError(f"{path}: operators must be a list")
    found = []
    for row in rows:
        good = isinstance(row, list) and len(row) == 5 and row[0] in names() and row[1] in _PHASES
        good = good and all(map(_is_positive, row[2:])) and {type(n) for n in row[2:4]} == {int}
        if not good:
            raise UserError(
                f"{path}: operators: {row!r}: expected [name, phase, tokens, elements, ns], with "
                f"a name of {', '.join(names())} and a phase of {', '.join(_PHASES)}"
            )
        found.append((row[0], row[1], row[2], row[3], float(row[4])))
    return tuple(found)


def _collectives(path: Path, rows: Any) -> tuple[MeasuredCollective, ...]:
    if not isinstance(rows, list) or len(rows) > _MOST_COLLECTIVES:
        raise UserError(f"{path}: collectives must be a list")
    found = []
    for row in rows:
        good = isinstance(row, list) and len(row) == 4 and row[0] in _KINDS
        good = good and all(map(_is_positive, row[1:])) and {type(n) for n in row[1:3]} == {int}
        if not good or row[1] < 2:
            raise UserError(
                f"{path}: collectives: {row!r}: expected [kind, ranks, bytes, ns], with a kind of "
                f"{', '.join(_KINDS)} and at least 2 ranks"
            )
        found.append((row[0], row[1], row[2], float(row[3])))
    return tuple(found)


def _is_positive(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and math.isfinite(value) and value > 0
