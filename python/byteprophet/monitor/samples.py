"""The results of the network monitor, and the files that store them (docs/formats.md)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from byteprophet.errors import UserError
from byteprophet.input_files import has_schema, read_json
from byteprophet.monitor.estimate import Estimate
from byteprophet.whole_files import make_directory, write_whole

SCHEMA = 1
DIRECTIONS = ("push", "pull")
_DIRECTORY = "network"
_ESTIMATE = tuple(Estimate.__dataclass_fields__)
_LARGEST = 1 << 63


@dataclass(frozen=True)
class Sample:
    """One worker's estimate of one direction to one server. ``server`` None: all together."""

    server: int | None
    direction: str
    estimate: Estimate

    def to_json(self) -> dict[str, Any]:
        """The sample as one flat object."""
        return {"server": self.server, "direction": self.direction, **asdict(self.estimate)}


@dataclass(frozen=True)
class WorkerNetwork:
    """All results of one worker's monitor.

    ``links`` are the estimates of all servers together. ``history`` has rows for each direction:
    monotonic clock (ns), busy time so far (ns) and estimate (bits per second) of the link.
    ``check``: see interface_check.py. ``probe``: the samples of the probe, if there was one.
    """

    rank: int
    samples: tuple[Sample, ...]
    links: tuple[Sample, ...]
    check: Mapping[str, Any]
    history: Mapping[str, Sequence[Sequence[int]]]
    probe: tuple[Sample, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The content of the file."""
        return {
            "schema": SCHEMA,
            "rank": self.rank,
            "samples": [sample.to_json() for sample in self.samples],
            "links": [sample.to_json() for sample in self.links],
            "probe": [sample.to_json() for sample in self.probe],
            "check": dict(self.check),
            "history": {name: list(rows) for name, rows in self.history.items()},
        }

    def write(self, run_directory: Path) -> None:
        """Writes ``network/worker-<rank>.json``. Readers see all of it or nothing."""
        directory = run_directory / _DIRECTORY
        make_directory(directory)
        path = directory / f"worker-{self.rank}.json"
        write_whole(path, json.dumps(self.to_json()) + "\n")


def read_network(run_directory: Path) -> list[WorkerNetwork]:
    """The results of a run's workers, by rank.

    Raises ``UserError`` if there are none or a file is broken.
    """
    if not run_directory.is_dir():
        raise UserError(f"run {run_directory}: there is no such directory")
    paths = sorted((run_directory / _DIRECTORY).glob("worker-*.json"))
    if not paths:
        raise UserError(
            f"run {run_directory}: has no network/worker-<rank>.json; run the job with --monitor,"
            " under a scheduler other than stock"
        )
    return sorted((_read(path) for path in paths), key=lambda found: found.rank)


def _read(path: Path) -> WorkerNetwork:
    content = read_json(path)
    try:
        if not has_schema(content, SCHEMA):
            raise UserError(f"schema must be {SCHEMA}")
        return WorkerNetwork(
            rank=_whole(content, "rank"),
            samples=_samples(content, "samples"),
            links=_samples(content, "links"),
            check=_check(content),
            history=_history(content),
            probe=_samples(content, "probe"),
        )
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _whole(table: Mapping[str, Any], name: str) -> int:
    value = table.get(name)
    if type(value) is not int or not 0 <= value <= _LARGEST:
        raise UserError(f"{name} must be a whole number up to 2^63, got {value!r:.100}")
    return value


def _object(table: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = table.get(name)
    if not isinstance(value, dict):
        raise UserError(f"{name} must be an object, got {value!r}")
    return value


def _check(table: Mapping[str, Any]) -> Mapping[str, Any]:
    check = _object(table, "check")
    disagrees = check.get("disagrees", "")
    if disagrees not in (True, False, None) or type(check.get("note")) is not str:
        raise UserError("check must have disagrees (true, false or null) and a note")
    if disagrees is not None and type(check.get("interface")) is not str:
        raise UserError(f"check.interface must be a text, got {check.get('interface')!r}")
    return check


def _samples(table: Mapping[str, Any], name: str) -> tuple[Sample, ...]:
    rows = table.get(name)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UserError(f"{name} must be a list of objects")
    return tuple(_sample(row, name) for row in rows)


def _sample(row: Mapping[str, Any], name: str) -> Sample:
    if row.get("direction") not in DIRECTIONS:
        raise UserError(f"{name}.direction must be push or pull, got {row.get('direction')!r}")
    values = {
        field: None
        if row.get(field) is None and field not in ("busy_ns", "bytes")
        else _whole(row, field)
        for field in (*_ESTIMATE, "server")
    }
    server = values.pop("server")
    return Sample(server, str(row["direction"]), Estimate(**values))  # type: ignore[arg-type]


def _history(table: Mapping[str, Any]) -> Mapping[str, Sequence[Sequence[int]]]:
    history = _object(table, "history")
    for name, rows in history.items():
        if (
            name not in DIRECTIONS
            or not isinstance(rows, list)
            or not all(
                isinstance(row, list) and len(row) == 3 and all(type(value) is int for value in row)
                for row in rows
            )
        ):
            raise UserError(f"history.{name} must be a list of three whole numbers each")
    return history
