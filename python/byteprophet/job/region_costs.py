"""What regions of a model cost in each mode, measured alone, and the file that holds it.

A script's own process writes the file (``torch/regions/probe.py``), region by region, so that a
measurement that was stopped is taken up again. ``byteprophet optimize`` reads it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from byteprophet.errors import UserError
from byteprophet.input_files import has_schema, read_json
from byteprophet.whole_files import write_whole

SCHEMA = 1
Unit = tuple[str, ...]
"""The paths of the modules of a chain's smallest part, in the order of their calls."""


@dataclass(frozen=True)
class ModeCost:
    """What one forward and backward pass of a region take, in nanoseconds.

    ``ready_ns``: when the gradient of each of its parameters is there, from the start of its
    backward pass. ``compile_ns``: the first forward and backward pass, if it is compiled.
    """

    forward_ns: int
    backward_ns: int
    ready_ns: tuple[int, ...]
    compile_ns: int = 0

    @property
    def both_ns(self) -> int:
        """Forward and backward together."""
        return self.forward_ns + self.backward_ns


@dataclass(frozen=True)
class RegionCost:
    """``modes``: by the name of a mode (``Region.mode``); "eager" is always there.

    ``parameters``: names, in the order of ``ready_ns``. ``refused``: why a mode cannot be used.
    ``structure``: a digest of its modules and inputs; with another one, it costs something else.
    """

    parameters: tuple[str, ...]
    modes: Mapping[str, ModeCost]
    refused: Mapping[str, str]
    structure: str = ""


@dataclass(frozen=True)
class RegionCosts:
    """``chains``: units that follow each other. ``regions``: what runs of them cost, by modules.

    The first chain has the whole model as its only unit. ``unmeasured``: runs of units for which
    there was no time yet, so that nothing is known of them.
    """

    chains: tuple[tuple[Unit, ...], ...]
    regions: Mapping[Unit, RegionCost]
    unmeasured: tuple[Unit, ...] = ()

    @property
    def has_all_units(self) -> bool:
        """Whether there was time for each unit of all chains."""
        left = {*self.unmeasured}
        return not any(unit in left for chain in self.chains for unit in chain)


def write_region_costs(path: Path, costs: RegionCosts) -> None:
    """Write the file; readers see all of it or what was there before."""
    data = {
        "schema": SCHEMA,
        "chains": costs.chains,
        "regions": [
            {"modules": modules, **asdict(region)} for modules, region in costs.regions.items()
        ],
        "unmeasured": costs.unmeasured,
    }
    write_whole(path, json.dumps(data, indent=1) + "\n")


def read_region_costs(path: Path) -> RegionCosts:
    """Read the file. ``UserError`` names it and the field that is wrong."""
    try:
        return _costs(read_json(path))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        said = str(error).partition("\n")[0]
        raise UserError(f"{path}: does not hold the costs of regions: {said}") from None


def _costs(data: Any) -> RegionCosts:
    if not has_schema(data, SCHEMA):
        raise ValueError(f"schema: must be {SCHEMA}")
    chains = tuple(tuple(tuple(map(_text, unit)) for unit in chain) for chain in data["chains"])
    regions = {
        tuple(map(_text, row["modules"])): RegionCost(
            tuple(map(_text, row["parameters"])),
            {name: _mode(mode, len(row["parameters"])) for name, mode in row["modes"].items()},
            {name: _text(reason) for name, reason in row["refused"].items()},
            _text(row.get("structure", "")),
        )
        for row in data["regions"]
    }
    if any("eager" not in region.modes for region in regions.values()):
        raise ValueError("regions: each must have the mode eager")
    unmeasured = tuple(tuple(map(_text, modules)) for modules in data.get("unmeasured", ()))
    return RegionCosts(chains, regions, unmeasured)


def _mode(row: dict[str, Any], parameters: int) -> ModeCost:
    ready_ns = tuple(map(_time_ns, row["ready_ns"]))
    if len(ready_ns) != parameters:
        raise ValueError("ready_ns: must have a time for each parameter")
    return ModeCost(
        _time_ns(row["forward_ns"]),
        _time_ns(row["backward_ns"]),
        ready_ns,
        _time_ns(row["compile_ns"]),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{str(value)[:40]!r}: must be text")
    return value


def _time_ns(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 60:
        raise ValueError(f"{str(value)[:40]!r}: must be a time in nanoseconds")
    return value
