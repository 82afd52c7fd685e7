"""The file that says which gradients of a job with servers shared buffers, ``fused.json``.

Rank 0 writes it into the run directory whenever its buffers change. In recorded transfers and in
profiles, a buffer has the name that stands here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from byteprophet.errors import UserError
from byteprophet.input_files import has_schema, read_json
from byteprophet.whole_files import write_whole

NAME = "fused.json"
SCHEMA = 1
_MOST = 1 << 50


@dataclass(frozen=True)
class Fused:
    """``parameters`` of each buffer, in forward order, by the buffer's name.

    They are in use from iteration ``since`` on, counted from 1.
    """

    parameters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    since: int = 0

    def of(self, name: str) -> tuple[str, ...]:
        """The parameters whose gradients travel under ``name``: one, or those of a buffer."""
        return self.parameters.get(name, (name,))


ALONE = Fused()
"""No gradients share a buffer."""


def write_fused(run_directory: Path, fused: Fused) -> None:
    """Write the file; readers see all of it or what was there before."""
    buffers = [
        {"name": name, "parameters": list(parameters)}
        for name, parameters in fused.parameters.items()
    ]
    data = {"schema": SCHEMA, "since": fused.since, "buffers": buffers}
    write_whole(run_directory / NAME, json.dumps(data, indent=1) + "\n")


def read_fused(run_directory: Path) -> Fused:
    """Read the file; without one, there were no buffers. ``UserError`` names file and field."""
    path = run_directory / NAME
    if not path.exists():
        return ALONE
    data = read_json(path)
    if not has_schema(data, SCHEMA):
        raise UserError(f"{path}: schema: must be {SCHEMA}")
    since, buffers = data.get("since"), data.get("buffers")
    if type(since) is not int or not 1 <= since <= _MOST:
        raise UserError(f"{path}: since: must be an integer from 1 to 2^50")
    if not isinstance(buffers, list):
        raise UserError(f"{path}: buffers: must be a list")
    parameters: dict[str, tuple[str, ...]] = {}
    for row in buffers:
        name = row.get("name") if isinstance(row, dict) else None
        members = row.get("parameters") if isinstance(row, dict) else None
        if not isinstance(name, str) or not isinstance(members, list) or len(members) < 2:
            raise UserError(f"{path}: buffers: each needs a name and two parameters or more")
        if not all(isinstance(each, str) for each in members):
            raise UserError(f"{path}: buffers: parameters must be names")
        parameters[name] = tuple(members)
    held = [each for members in parameters.values() for each in members]
    if len(set(held)) < len(held) or len(parameters) < len(buffers):
        raise UserError(f"{path}: buffers: must name every buffer and every parameter once")
    return Fused(parameters, since)
