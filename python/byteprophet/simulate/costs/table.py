"""Measured costs of a device: of matrix products by shape, memory bandwidth, and launches.

A table comes from ``byteprophet costs collect``, as a JSON file, or from a package. What it lacks
stays as the cluster's description says.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from byteprophet.errors import UserError
from byteprophet.input_files import has_schema, is_number, read_json
from byteprophet.simulate.compile.steps import CollectiveKind, Phase
from byteprophet.simulate.costs.reference_operators import names
from byteprophet.whole_files import write_whole

FORMAT, SCHEMA = "byteprophet-costs", 1
MeasuredCollective: TypeAlias = tuple[str, int, int, float]
"""Kind, number of ranks, bytes of the whole tensor, and time in ns."""
MeasuredOperator: TypeAlias = tuple[str, str, int, int, float]
"""Name, "forward" or "backward", rows, columns, and time in ns."""
MeasuredAttention: TypeAlias = tuple[str, str, int, int, int, int, float]
"""Phase, "causal" or "full", samples, heads, tokens, width of a head, and time in ns."""
MeasuredConvolution: TypeAlias = tuple[str, int, int, int, int, int, int, float]
"""Phase, samples, input channels, output channels, kernel, stride, side of the input, and ns."""
MeasuredLayer: TypeAlias = tuple[str, int, int, int, float]
"""Phase, rows, columns, inner size, and time in ns of one of a linear layer's three products."""
MASKS = ("causal", "full")
_KINDS = tuple(kind.value for kind in CollectiveKind)
_PHASES = (Phase.FORWARD.value, Phase.BACKWARD.value)
_PARTS = (*_PHASES, Phase.WEIGHT.value)
_TRANSPOSED = (Phase.FORWARD.value, Phase.WEIGHT.value)
_MOST = 1 << 62
"""Of whole numbers."""
_NUMBERS = (
    "memory_bytes_per_s",
    "attention_flops_per_s",
    "launch_ns",
    "node_bytes_per_s",
    "node_latency_ns",
    "update_bytes_per_s",
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
        update_bytes_per_s: what a fused step of Adam reads and writes: 28 bytes per parameter.
        collectives: kind, number of ranks, bytes of the whole tensor and time in ns of collectives
            between ranks that are alone in their nodes.
        operators: name, "forward" or "backward", tokens, elements of each, and time in ns of
            operators that memory limits (``reference_operators.py``).
        attention: phase, "causal" or "full", samples, heads, tokens, width of a head, and time in
            ns of fused attention.
        convolutions: phase, samples, input and output channels, kernel, stride, side of the input
            and time in ns of square convolutions, channels last.
        unaligned: phase, rows, columns, inner size and time in ns of products with a parameter
            whose rows do not begin at multiples of 16 bytes.
        transposed: the same of products with a transposed matrix, which linear layers have in the
            forward pass and for the gradient of the weight.
    """

    source: str
    products: tuple[tuple[int, int, int, float], ...] = ()
    memory_bytes_per_s: float = 0.0
    attention_flops_per_s: float = 0.0
    launch_ns: float = 0.0
    node_bytes_per_s: float = 0.0
    node_latency_ns: float = 0.0
    update_bytes_per_s: float = 0.0
    collectives: tuple[MeasuredCollective, ...] = ()
    operators: tuple[MeasuredOperator, ...] = ()
    attention: tuple[MeasuredAttention, ...] = ()
    convolutions: tuple[MeasuredConvolution, ...] = ()
    unaligned: tuple[MeasuredLayer, ...] = ()
    transposed: tuple[MeasuredLayer, ...] = ()


@dataclass(frozen=True)
class _Rows:
    """The rows of a list: words, then positive whole numbers, then ns.

    Attributes:
        columns: the names of all columns, for messages.
        words: of the first columns, what may stand there.
        most: the most rows.
        least: of the first number.
    """

    columns: str
    words: tuple[tuple[str, ...], ...]
    most: int
    least: int = 1


_LISTS = {
    "products": _Rows("rows, columns, inner, ns", (), 1_000_000),
    "collectives": _Rows("kind, ranks, bytes, ns", (_KINDS,), 10_000, least=2),
    "operators": _Rows("name, phase, tokens, elements, ns", (names(), _PHASES), 10_000),
    "attention": _Rows("phase, mask, samples, heads, tokens, width, ns", (_PHASES, MASKS), 100_000),
    "convolutions": _Rows(
        "phase, samples, inputs, outputs, kernel, stride, side, ns", (_PARTS,), 100_000
    ),
    "unaligned": _Rows("phase, rows, columns, inner, ns", (_PARTS,), 10_000),
    "transposed": _Rows("phase, rows, columns, inner, ns", (_TRANSPOSED,), 100_000),
}


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
    if not isinstance(data, dict) or data.get("format") != FORMAT or not has_schema(data, SCHEMA):
        raise UserError(f"{path}: not a table of costs, as byteprophet costs collect writes it")
    source = data.get("source")
    if not isinstance(source, str):
        raise UserError(f"{path}: source must be a text")
    numbers: dict[str, float] = {}
    for name in _NUMBERS:
        value = data.get(name, 0)
        if value != 0 and not _is_positive(value):
            raise UserError(f"{path}: {name} is {value!r}: must be a positive number")
        numbers[name] = float(value)
    lists = {name: _rows(path, name, data.get(name, [])) for name in _LISTS}
    return CostTable(source, **numbers, **lists)  # type: ignore[arg-type]


def _rows(path: Path, name: str, given: Any) -> tuple[tuple[Any, ...], ...]:
    """The rows of a list.

    Raises:
        UserError: it is no list, too long, or a row is wrong.
    """
    rows = _LISTS[name]
    if not isinstance(given, list) or len(given) > rows.most:
        raise UserError(f"{path}: {name} must be a list of at most {rows.most:,} rows")
    count = len(rows.columns.split(", "))
    found = []
    for row in given:
        good = isinstance(row, list) and len(row) == count
        good = good and all(word in known for word, known in zip(row, rows.words, strict=False))
        numbers = row[len(rows.words) :] if good else []
        good = good and all(map(_is_positive, numbers))
        good = good and all(type(number) is int and number < _MOST for number in numbers[:-1])
        if not good or numbers[0] < rows.least:
            raise UserError(f"{path}: {name}: {row!r}: expected {_expected(rows)}")
        found.append((*row[:-1], float(row[-1])))
    return tuple(found)


def _is_positive(value: Any) -> bool:
    return is_number(value) and bool(value > 0)


def _expected(rows: _Rows) -> str:
    """A row in words."""
    columns = rows.columns.split(", ")
    said = [
        f"a {column} of {', '.join(words)}"
        for column, words in zip(columns, rows.words, strict=False)
    ]
    if rows.least > 1:
        said.append(f"at least {rows.least} {columns[len(rows.words)]}")
    return f"[{rows.columns}]" + (f", with {' and '.join(said)}" if said else "")
