"""Small files of what an optimisation learns: regions, memory, buffers, finished rounds."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from byteprophet.job.fused_file import Fused, read_fused, write_fused
from byteprophet.job.region_costs import ModeCost, RegionCost, RegionCosts, Unit, write_region_costs
from byteprophet.job.region_memory import (
    ParameterMemory,
    Phases,
    RegionMemory,
    read_region_memory,
    write_region_memory,
)
from byteprophet.job.strategy import COMPILED, EAGER
from byteprophet.optimize.rounds import Rounds

_UNITS: tuple[Unit, ...] = (("a",), ("b.0", "b.1"))
_OF = {"baseline": "1" * 64, "optimised": "2" * 64}


def write_learned(directory: Path) -> None:
    """Write one file of each format."""
    directory.mkdir()
    eager, compiled = ModeCost(5000, 9000, (9000, 4000)), ModeCost(3000, 7000, (7000, 7000), 10**9)
    regions: dict[Unit, RegionCost] = {
        unit: RegionCost((f"{unit[0]}.weight", f"{unit[0]}.bias"), modes, {"bf16": "no reason"})
        for unit, modes in (
            (_UNITS[0], {EAGER: eager, COMPILED: compiled}),
            (_UNITS[1], {EAGER: eager}),
        )
    }
    write_region_costs(directory / "region-costs.json", RegionCosts(((("",),), _UNITS), regions))
    changes = np.array([[10] * 8, [20] * 8, [-20] * 8, [-10] * 8])
    phases = Phases(1000, np.array([0, 1, 1, 0]), np.abs(changes), changes)
    parameters = {"a.weight": ParameterMemory(10, 40, 80, 40, 1, 3)}
    memory = RegionMemory(_UNITS, phases, parameters, 9, True)
    write_region_memory(directory / "region-memory.json", memory)
    write_fused(directory, Fused({"a.weight and 1 more": ("a.weight", "a.bias")}, 2))
    rounds = Rounds(directory / "rounds.json", _OF)
    for variant in _OF:
        rounds.add(variant, np.array([10_000, 11_000]))


def use_memory(_samples: Path, path: Path) -> None:
    """Read the memory of regions, and the peak of every mix."""
    memory = read_region_memory(path)
    assert memory.phases.peaks([[0] * len(memory.units), [1] * len(memory.units)]).shape == (2,)


def use_fused(_samples: Path, path: Path) -> None:
    """Read the buffers of a job."""
    assert all(len(names) > 1 for names in read_fused(path.parent).parameters.values())


def use_rounds(_samples: Path, path: Path) -> None:
    """Go on with finished rounds: what cannot be read is measured again."""
    rounds = Rounds(path, _OF)
    for variant in _OF:
        assert len(rounds.iteration_ns(variant, 1)) == min(1, rounds.done(variant))
