"""A strategy as a TOML file.

    micro_batches = 64
    schedule = "1f1b"

    [mesh]
    tp = 8
    dp = 16

    [nodes.""]
    split = { dp = "batch", tp = ["heads", "inner", "vocabulary"] }

    [nodes."layers.*.attention.core"]
    recompute = true

``nodes`` has a table for each pattern of paths; later ones hold before earlier ones. ``stage`` of a
node is its pipeline stage; ``micro_batches``, ``max_ongoing`` and ``along`` are those of
``Node.schedule``. Everything else is as in ``Strategy``.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from byteprophet.errors import UserError
from byteprophet.input_files import parse_table, read_text
from byteprophet.simulate.operation.mesh import AXES, Mesh
from byteprophet.simulate.tree.one_line import parse_strategy
from byteprophet.simulate.tree.strategy import Rule, Strategy

_SETTINGS = {
    field.name: field.type for field in fields(Strategy) if field.name not in ("mesh", "rules")
}
_SCHEDULE = {"micro_batches": int, "max_ongoing": int, "along": str}
_TYPES = {"int": int, "bool": bool, "str": str}


def given_strategy(text: str, gpus: int) -> Strategy:
    """The strategy that a user gives: a line of KEY=VALUE, or the path of a file.

    Raises:
        UserError: as ``parse_strategy`` and ``read_strategy``.
    """
    if text.endswith(".toml"):
        return read_strategy(Path(text), gpus)
    return parse_strategy(text, gpus)


def read_strategy(path: Path, gpus: int) -> Strategy:
    """The strategy in a file, for ``gpus`` GPUs.

    Raises:
        UserError: the file cannot be read, or a setting is wrong.
    """
    table = parse_table(read_text(path), str(path))
    degrees = _table(path, "mesh", table.pop("mesh", {}))
    for axis, degree in degrees.items():
        if axis not in AXES or type(degree) is not int or degree < 1:
            raise UserError(
                f"{path}: mesh.{axis} = {degree!r}: expected AXIS = DEGREE, with the "
                f"axes {', '.join(AXES)}"
            )
    mesh = Mesh(**degrees)
    if mesh.ranks != gpus:
        raise UserError(f"{path}: mesh has {mesh.ranks} ranks, but there are {gpus} GPUs")
    nodes = _table(path, "nodes", table.pop("nodes", {}))
    rules = tuple(_rule(path, pattern, node) for pattern, node in nodes.items())
    for key, value in table.items():
        if key not in _SETTINGS:
            raise UserError(
                f"{path}: {key}: there is no such setting: use mesh, nodes, {', '.join(_SETTINGS)}"
            )
        wanted = _TYPES[str(_SETTINGS[key])]
        if type(value) is not wanted:
            raise UserError(f"{path}: {key} is {value!r}: must be of type {wanted.__name__}")
    return Strategy(mesh, rules, **table)


def _table(path: Path, name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{path}: {name} must be a table")
    return value


def _rule(path: Path, pattern: str, node: Any) -> Rule:
    where = f'{path}: nodes."{pattern}"'
    if not isinstance(node, dict):
        raise UserError(f"{where} must be a table")
    for key in node.keys() - {"split", "recompute", "stage", *_SCHEDULE}:
        raise UserError(
            f"{where}: {key}: there is no such setting: use split, recompute, stage, "
            f"{', '.join(_SCHEDULE)}"
        )
    splits = []
    for axis, dims in _table(path, f'nodes."{pattern}".split', node.get("split", {})).items():
        named = [dims] if isinstance(dims, str) else dims
        if not isinstance(named, list) or not all(isinstance(dim, str) for dim in named):
            raise UserError(f"{where}: split.{axis} is {dims!r}: must be a dimension, or a list")
        splits.append((axis, tuple(named)))
    recompute, stage = node.get("recompute"), node.get("stage")
    if not isinstance(recompute, bool | None):
        raise UserError(f"{where}: recompute is {recompute!r}: must be true or false")
    if stage is not None and (type(stage) is not int or stage < 0):
        raise UserError(f"{where}: stage is {stage!r}: must be a whole number")
    given = {key: node[key] for key in _SCHEDULE if key in node}
    for key, value in given.items():
        if type(value) is not _SCHEDULE[key]:
            wanted = "a dimension" if key == "along" else "a whole number"
            raise UserError(f"{where}: {key} is {value!r}: must be {wanted}")
    if given and not given.get("micro_batches"):
        raise UserError(f"{where}: {next(iter(given))} needs micro_batches, at least 1")
    return Rule(pattern, tuple(splits), recompute, stage, **given)
