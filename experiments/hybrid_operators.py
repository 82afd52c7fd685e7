"""Measures operators that ranks of ``hybrid.py`` called, alone in one process on one core.

A table is a JSON file: for each call, its time in nanoseconds and its outputs. Arguments are made
by their shapes, strides and types; indices are zeros. Calls with different tensors take turns, as
in ``byteprophet costs collect``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from hybrid_device import Described, Operation, Paced, is_paceable

from byteprophet.errors import UserError
from byteprophet.input_files import read_json
from byteprophet.simulate.costs.collect import PASSES
from byteprophet.simulate.costs.taking_turns import copies, in_turn
from byteprophet.whole_files import write_whole

_LEAST_NS = 10_000
"""Faster operators run for real."""
_SECONDS = 0.01
"""For one operator in a pass; it runs three times at least."""

Table = dict[Operation, Paced]


def measure(
    called: Mapping[Operation, Described],
    say: Callable[[str], None],
    before_pass: Callable[[], object] = lambda: None,
) -> Table:
    """The times of the operators that ranks called, of those that can be paced.

    They are measured in several passes over all of them, since the machine's speed changes within
    seconds. A time is the least of all passes, as in ``byteprophet costs collect``.

    Args:
        called: the operators and their outputs.
        say: is told how far it is.
        before_pass: measures what is compared with them, in the same periods of the machine.
    """
    torch.set_num_threads(1)
    times_ns: dict[Operation, int] = {}
    wanted = [(one, outputs) for one, outputs in called.items() if is_paceable(one, outputs)]
    with torch.no_grad():
        for number in range(1, PASSES + 1):
            before_pass()
            for operation, _ in wanted:
                time_ns = _median_ns(operation)
                times_ns[operation] = min(time_ns, times_ns.get(operation, time_ns))
            say(f"{len(wanted)} operators, pass {number} of {PASSES}")
    return {
        operation: Paced(times_ns[operation], outputs)
        for operation, outputs in wanted
        if times_ns[operation] >= _LEAST_NS
    }


def _median_ns(operation: Operation) -> int:
    """What counts is the processor time of the only thread that computes."""
    space, packet, overload = operation.name.split(".")
    function = getattr(getattr(getattr(torch.ops, space), packet), overload)

    def call() -> partial[Any]:
        args = [_value(each) for each in operation.args[1:]]
        kwargs = {name: _value(each) for name, each in operation.kwargs}
        return partial(function, *args, **kwargs)

    first = call()
    size_bytes = max(_bytes(first.args), _bytes(first()))
    run = in_turn([first, *(call() for _ in range(copies("cpu", size_bytes)))])
    times: list[int] = []
    until = time.monotonic() + _SECONDS
    while len(times) < 3 or time.monotonic() < until:
        began_ns = time.thread_time_ns()
        run()
        times.append(time.thread_time_ns() - began_ns)
    return sorted(times)[len(times) // 2]


def _bytes(value: Any) -> int:
    """The memory of the tensors in an argument or an output."""
    if isinstance(value, torch.Tensor):
        return value.untyped_storage().nbytes()
    return sum(map(_bytes, value)) if isinstance(value, (list, tuple)) else 0


def _value(what: Described) -> Any:
    kind, *rest = what
    if kind == "tensor":
        shape, strides, name = rest
        dtype = getattr(torch, name)
        last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        flat = torch.rand(last + 1) + 0.1 if dtype.is_floating_point else torch.zeros(last + 1)
        flat = torch.ones(last + 1) if dtype is torch.bool else flat
        return flat.to(dtype).as_strided(shape, strides)
    if kind == "list":
        return [_value(each) for each in rest]
    if kind == "torch":
        return getattr(torch, rest[0])
    return torch.device(rest[0]) if kind == "device" else rest[0]


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


def as_rows(called: Mapping[Operation, Described], counts: Mapping[Operation, int]) -> list[Any]:
    """Operators, their outputs, and how often each was called, as plain data."""
    return [[*operation, outputs, counts[operation]] for operation, outputs in called.items()]


def counts_from(rows: Iterable[Any]) -> dict[Operation, int]:
    """How often each operator was called, from what ``as_rows`` made plain."""
    return {Operation(*_frozen(row[:3])): row[4] for row in rows}


def from_rows(rows: Iterable[Any]) -> dict[Operation, Described]:
    """Operators and their outputs, from what ``as_rows`` made plain."""
    return {Operation(*_frozen(row[:3])): _frozen(row[3]) for row in rows}


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
