"""What an iteration of a model takes in memory, for every mix of recomputed units, and its file.

A *unit* is what ``RegionCosts.chains`` consists of; a *mix* says which units are recomputed. A
script's own process writes the file (``torch/regions/memory_probe.py``), and ``byteprophet
optimize`` reads it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from byteprophet.errors import UserError
from byteprophet.input_files import has_schema, read_json
from byteprophet.job.region_costs import Unit
from byteprophet.job.times import Int64Array
from byteprophet.whole_files import write_whole

SCHEMA = 2
STATES = 8
"""Of a unit and its two neighbours, each plain or recomputed."""

_MOST_BYTES = 1 << 60


@dataclass(frozen=True)
class Phases:
    """What a mix of units needs, phase by phase.

    Each unit divides an iteration into phases: its forward pass, its backward pass, and what comes
    between. ``start_bytes``: what lives when the iteration begins. ``owner`` (phases,): the unit
    whose neighbours matter to a phase. ``peak_bytes``, ``change_bytes`` (phases, 8): relative to
    the phase's beginning. The second index is 4 for a recomputed unit before the owner, plus 2 for
    the owner, plus 1 for the unit behind it.
    """

    start_bytes: int
    owner: Int64Array
    peak_bytes: Int64Array
    change_bytes: Int64Array

    def peaks(self, mixes: npt.ArrayLike, extra_bytes: npt.ArrayLike = 0) -> Int64Array:
        """The peak of each mix in bytes.

        ``mixes`` (mixes, units): whether it is recomputed. ``extra_bytes`` (phases,): what lives
        besides in each phase.
        """
        states = np.asarray(mixes, dtype=np.int64)
        around = np.pad(states, ((0, 0), (1, 1)))
        codes = 4 * around[:, :-2] + 2 * states + around[:, 2:]
        extra = np.broadcast_to(np.asarray(extra_bytes, dtype=np.int64), self.owner.shape)
        level = np.full(len(states), self.start_bytes)
        highest: Int64Array = level.copy()
        for owner, peak, change, more in zip(
            self.owner, self.peak_bytes, self.change_bytes, extra, strict=True
        ):
            code = codes[:, owner]
            np.maximum(highest, level + peak[code] + more, out=highest)
            level += change[code]
        return highest

    def peak(self, mix: Sequence[bool]) -> int:
        """The peak of one mix in bytes."""
        return int(self.peaks([mix])[0])


@dataclass(frozen=True)
class ParameterMemory:
    """A parameter's bytes, those of its optimizer state, and when they matter.

    ``served_bytes``: what its gradient takes besides while it travels to servers and back. A place
    is a phase of an iteration, or one of its operations. ``unread_places``: those before the
    forward pass has first read it. ``ready_place``: where its gradient is complete.
    """

    elements: int
    size_bytes: int
    state_bytes: int
    served_bytes: int
    unread_places: int
    ready_place: int


@dataclass(frozen=True)
class RegionMemory:
    """``units``: those of the phases, in forward order. ``update_bytes``: temporary, of an update.

    ``parameters``: those that train, by name; one without a gradient is first read, and ready, at
    places that do not exist. ``shardable``: whether ranks may update shards of
    a parameter; if not, every rank keeps the whole state of its optimizer. ``reducer_bytes``: the
    buckets of the script's own DistributedDataParallel, which live whatever exchanges gradients.
    """

    units: tuple[Unit, ...]
    phases: Phases
    parameters: Mapping[str, ParameterMemory]
    update_bytes: int
    shardable: bool
    reducer_bytes: int = 0


def write_region_memory(path: Path, memory: RegionMemory) -> None:
    """Write the file; readers see all of it or what was there before."""
    phases = memory.phases
    data = {
        "schema": SCHEMA,
        "units": memory.units,
        "start_bytes": phases.start_bytes,
        "phases": [
            {"owner": owner, "peak_bytes": peaks, "change_bytes": changes}
            for owner, peaks, changes in zip(
                phases.owner.tolist(),
                phases.peak_bytes.tolist(),
                phases.change_bytes.tolist(),
                strict=True,
            )
        ],
        "parameters": {name: asdict(each) for name, each in memory.parameters.items()},
        "update_bytes": memory.update_bytes,
        "shardable": memory.shardable,
        "reducer_bytes": memory.reducer_bytes,
    }
    write_whole(path, json.dumps(data, indent=1) + "\n")


def read_region_memory(path: Path) -> RegionMemory:
    """Read the file. ``UserError`` names it and the field that is wrong."""
    try:
        return _memory(read_json(path))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        said = str(error).partition("\n")[0]
        raise UserError(f"{path}: does not hold the memory of regions: {said}") from None


def _memory(data: Any) -> RegionMemory:
    if not has_schema(data, SCHEMA):
        raise ValueError(f"schema: must be {SCHEMA}")
    units = tuple(tuple(map(_text, unit)) for unit in data["units"])
    rows = data["phases"]
    if not units or not rows:
        raise ValueError("units, phases: must not be empty")
    phases = Phases(
        _number(data["start_bytes"], 0, _MOST_BYTES),
        np.array([_number(row["owner"], 0, len(units) - 1) for row in rows], dtype=np.int64),
        _table([row["peak_bytes"] for row in rows]),
        _table([row["change_bytes"] for row in rows]),
    )
    parameters = {
        _text(name): ParameterMemory(
            *(_number(each[key], 0, _MOST_BYTES) for key in _SIZES),
            *(_number(each[key], 0, len(rows)) for key in _PLACES),
        )
        for name, each in data["parameters"].items()
    }
    update_bytes = _number(data["update_bytes"], 0, _MOST_BYTES)
    return RegionMemory(
        units,
        phases,
        parameters,
        update_bytes,
        _flag(data["shardable"]),
        _number(data["reducer_bytes"], 0, _MOST_BYTES),
    )


_SIZES = ("elements", "size_bytes", "state_bytes", "served_bytes")
_PLACES = ("unread_places", "ready_place")


def _table(rows: list[Any]) -> Int64Array:
    if any(len(row) != STATES for row in rows):
        raise ValueError(f"phases: each must have {STATES} peaks and changes")
    return np.array(
        [[_number(value, -_MOST_BYTES, _MOST_BYTES) for value in row] for row in rows],
        dtype=np.int64,
    )


def _number(value: Any, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{str(value)[:40]!r}: must be a whole number from {least} to {most}")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{str(value)[:40]!r}: must be true or false")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{str(value)[:40]!r}: must be text")
    return value
