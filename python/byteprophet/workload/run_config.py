"""Reads and checks ``config.toml`` of a finished run.

The launcher writes it (``launcher/rundir.py``). The fields that describe the recorded job are
checked; others stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from byteprophet import schedulers
from byteprophet.errors import UserError
from byteprophet.input_files import parse_table, read_text
from byteprophet.network import payload_bps

_LARGEST = 1 << 62
_MOST_ROLES = 1 << 16
# Field: least, most, and what it is where it is missing; None: it must be there.
_WHOLE: Mapping[str, tuple[int, int, int | None]] = {
    "workers": (1, _MOST_ROLES, None),
    "servers": (0, _MOST_ROLES, None),
    "local_ranks": (1, _MOST_ROLES, 1),
}
# Those of the others that are read here and there.
_KINDS: Mapping[str, tuple[type, str]] = {
    "scheduler": (str, "text"),
    "controller": (bool, "true or false"),
    "directory": (str, "text"),
    "namespaces": (bool, "true or false"),
    "environment": (dict, "a table"),
    "command": (list, "a list"),
    "steps": (list, "a list"),
}


def read_run_config(run_directory: Path) -> dict[str, Any]:
    """The table in a run's ``config.toml``; UserError in one line that names the file."""
    path = run_directory / "config.toml"
    config = parse_table(read_text(path), str(path))
    try:
        return _checked(config)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def link_limits_bps(config: Mapping[str, Any]) -> list[int | None]:
    """Payload of each process' link, by rank, as it was limited.

    None: it was not, or not all the time, or local ranks share it.
    """
    local_ranks = config.get("local_ranks", 1)
    if local_ranks > 1 or config.get("steps"):
        return [None] * (config["workers"] * local_ranks)
    own_bps = config.get("worker_bandwidth_bps", {})
    limits_bps = (
        own_bps.get(str(n), config.get("bandwidth_bps")) for n in range(config["workers"])
    )
    return [payload_bps(limit_bps) for limit_bps in limits_bps]


def server_limits_bps(config: Mapping[str, Any]) -> list[int | None]:
    """Payload of each server's link, as it was limited; None: it was not."""
    own_bps = config.get("server_bandwidth_bps", {})
    return [payload_bps(own_bps.get(str(n))) for n in range(config["servers"])]


def _checked(config: dict[str, Any]) -> dict[str, Any]:
    for name, (least, most, usual) in _WHOLE.items():
        if usual is not None:
            config.setdefault(name, usual)
        if name not in config:
            raise UserError(f"{name} is missing")
        _check_whole(name, config[name], least, most)
    for name, least in (
        ("settings", -_LARGEST),
        ("worker_bandwidth_bps", 1),
        ("server_bandwidth_bps", 1),
    ):
        table = config.setdefault(name, {})
        if not isinstance(table, dict):
            raise UserError(f"{name} must be a table, got {table!r}")
        for key, value in table.items():
            _check_whole(f"{name}.{key}", value, least, _LARGEST)
    ranks = config["workers"] * config["local_ranks"]
    if ranks > _MOST_ROLES:
        raise UserError(f"workers x local_ranks is {ranks}, and a job has at most {_MOST_ROLES}")
    for name, (kind, what) in _KINDS.items():
        if name in config and type(config[name]) is not kind:
            raise UserError(f"{name} must be {what}, got {config[name]!r:.100}")
    for name in ("bandwidth_bps", "partition_bytes"):
        if name in config:
            _check_whole(name, config[name], 1, _LARGEST)
    config.setdefault("steps", [])
    config.setdefault("environment", {})
    if config["servers"]:  # else it reduced among its workers, and has neither
        for name in ("scheduler", "partition_bytes"):
            if name not in config:
                raise UserError(f"{name} is missing")
        schedulers.resolve(config["scheduler"], config["settings"])
    return config


def _check_whole(name: str, value: object, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise UserError(f"{name} must be a whole number from {least} to {most}, got {value!r}")
