"""The file with the order on which the workers of a job agreed, ``order.json``.

The first rank that pushes writes it into the run directory once it is in use. The policy plans the
order of all partitions from it (``prophet/policy/planned_order.h``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from byteprophet.errors import UserError
from byteprophet.input_files import has_schema, read_json
from byteprophet.whole_files import write_whole

NAME = "order.json"
SCHEMA = 1
_MOST = 1 << 50


@dataclass(frozen=True)
class Order:
    """What it is planned from. ``ready``: ready times in ns, by tensor.

    ``bandwidth_bps``: payload of the slowest link. Workers have had an order of these tensors from
    iteration ``since`` on, counted from 1, but may have known other times and another bandwidth at
    first.
    """

    bandwidth_bps: int
    ready: Mapping[str, int]
    since: int


def write_order(run_directory: Path, order: Order) -> None:
    """Write the file; readers see all of it or what was there before."""
    tensors = [{"name": name, "ready_ns": ready_ns} for name, ready_ns in order.ready.items()]
    data = {
        "schema": SCHEMA,
        "since": order.since,
        "bandwidth_bps": order.bandwidth_bps,
        "tensors": tensors,
    }
    write_whole(run_directory / NAME, json.dumps(data, indent=1) + "\n")


def read_order(run_directory: Path) -> Order | None:
    """Read the file; without one, the workers agreed on none. ``UserError`` names the field."""
    path = run_directory / NAME
    if not path.exists():
        return None
    data = read_json(path)
    if not has_schema(data, SCHEMA):
        raise UserError(f"{path}: schema: must be {SCHEMA}")
    since, bandwidth_bps = (_positive(path, data, name) for name in ("since", "bandwidth_bps"))
    tensors = data.get("tensors")
    if not isinstance(tensors, list):
        raise UserError(f"{path}: tensors: must be a list")
    ready: dict[str, int] = {}
    for row in tensors:
        name = row.get("name") if isinstance(row, dict) else None
        if not isinstance(name, str) or name in ready:
            raise UserError(f"{path}: tensors: each needs a name of its own")
        ready_ns = row.get("ready_ns")
        if type(ready_ns) is not int or not 0 <= ready_ns <= _MOST:
            raise UserError(f"{path}: tensors: {name}: ready_ns must be an integer from 0 to 2^50")
        ready[name] = ready_ns
    return Order(bandwidth_bps, ready, since)


def _positive(path: Path, data: Mapping[str, object], name: str) -> int:
    value = data.get(name)
    if type(value) is not int or not 1 <= value <= _MOST:
        raise UserError(f"{path}: {name}: must be an integer from 1 to 2^50")
    return value
