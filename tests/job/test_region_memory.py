"""The memory of mixes of recomputed units: peaks, and the file."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from byteprophet.errors import UserError
from byteprophet.job.region_memory import (
    ParameterMemory,
    Phases,
    RegionMemory,
    read_region_memory,
    write_region_memory,
)

# Two units. Forward keeps 10 each, or 1 if recomputed; backward lets it go, and takes it once more.
_KEPT, _INPUT = 10, 1


def _phases() -> Phases:
    """Forward of 0, of 1, backward of 1, of 0."""
    own = np.arange(8) >> 1 & 1
    kept = np.where(own, _INPUT, _KEPT)
    forward_peak = np.full(8, _KEPT)
    backward_peak = np.where(own, _KEPT, 0) + 2
    return Phases(
        100,
        np.array([0, 1, 1, 0]),
        np.array([forward_peak, forward_peak, backward_peak, backward_peak]),
        np.array([kept, kept, -kept, -kept]),
    )


MEMORY = RegionMemory(
    (("a",), ("b.0", "b.1")),
    _phases(),
    {"a.weight": ParameterMemory(10, 40, 80, 40, 1, 3)},
    7,
    True,
    reducer_bytes=40,
)


def test_peaks_follow_the_levels() -> None:
    mixes = list(itertools.product((0, 1), repeat=2))
    peaks = dict(zip(mixes, MEMORY.phases.peaks(mixes).tolist(), strict=True))
    assert peaks == {
        (0, 0): 100 + 2 * _KEPT + 2,  # at the start of the backward pass
        (0, 1): 100 + _KEPT + _INPUT + _KEPT + 2,  # while unit 1 is recomputed
        (1, 0): 100 + _INPUT + _KEPT + 2,
        (1, 1): 100 + 2 * _INPUT + _KEPT + 2,
    }
    assert MEMORY.phases.peak([True, False]) == peaks[1, 0]


def test_what_lives_besides_counts_where_it_lives() -> None:
    plain = MEMORY.phases.peak([False, False])
    assert MEMORY.phases.peaks([[0, 0]], [0, 0, 5, 0]).tolist() == [plain + 5]
    assert MEMORY.phases.peaks([[0, 0]], [5, 0, 0, 0]).tolist() == [plain]
    assert MEMORY.phases.peaks([[0, 0]], 5).tolist() == [plain + 5]


def test_the_file_holds_it_all(tmp_path: Path) -> None:
    path = tmp_path / "memory.json"
    write_region_memory(path, MEMORY)
    read = read_region_memory(path)
    assert replace(read, phases=MEMORY.phases) == MEMORY
    for name in ("owner", "peak_bytes", "change_bytes"):
        assert np.array_equal(getattr(read.phases, name), getattr(MEMORY.phases, name))
    assert read.phases.start_bytes == MEMORY.phases.start_bytes


def _set(*path: Any) -> Callable[[Any], None]:
    *outer, last, value = path

    def change(data: Any) -> None:
        for key in outer:
            data = data[key]
        data[last] = value

    return change


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_set("schema", 1), "schema: must be 2"),
        (_set("units", []), "must not be empty"),
        (_set("phases", []), "must not be empty"),
        (_set("start_bytes", -1), "'-1': must be a whole number from 0"),
        (_set("phases", 0, "owner", 2), "'2': must be a whole number from 0 to 1"),
        (_set("phases", 1, "peak_bytes", [1]), "each must have 8 peaks"),
        (_set("phases", 1, "change_bytes", 0, 0.5), "'0.5': must be a whole number"),
        (_set("parameters", "a.weight", "ready_place", 9), "'9': must be a whole number"),
        (_set("units", 0, [3]), "'3': must be text"),
        (_set("shardable", 1), "'1': must be true or false"),
    ],
)
def test_a_damaged_file_is_named(damage: Callable[[Any], None], said: str, tmp_path: Path) -> None:
    path = tmp_path / "memory.json"
    write_region_memory(path, MEMORY)
    data = json.loads(path.read_text())
    damage(data)
    path.write_text(json.dumps(data))
    with pytest.raises(UserError, match=f"{path}: .*{said}"):
        read_region_memory(path)


def test_no_key_may_be_missing(tmp_path: Path) -> None:
    path = tmp_path / "memory.json"
    write_region_memory(path, MEMORY)
    whole = json.loads(path.read_text())
    for key in whole:
        path.write_text(json.dumps({name: whole[name] for name in whole if name != key}))
        with pytest.raises(UserError, match=f"{path}: "):
            read_region_memory(path)
    for key in random.Random(1).sample(sorted(whole["parameters"]["a.weight"]), 3):
        damaged = json.loads(json.dumps(whole))
        del damaged["parameters"]["a.weight"][key]
        path.write_text(json.dumps(damaged))
        with pytest.raises(UserError, match=key):
            read_region_memory(path)
