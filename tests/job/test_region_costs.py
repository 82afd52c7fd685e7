"""Files of region costs: what is written is read, and what is wrong is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from byteprophet.errors import UserError
from byteprophet.job.region_costs import (
    ModeCost,
    RegionCost,
    RegionCosts,
    read_region_costs,
    write_region_costs,
)

COSTS = RegionCosts(
    ((("",),), (("a", "b"), ("c",))),
    {
        ("a", "b"): RegionCost(
            ("a.weight", "a.bias"),
            {"eager": ModeCost(5, 9, (9, 4)), "compiled": ModeCost(4, 8, (8, 8), 1000)},
            {"recomputed": "it draws lots"},
            "abc",
        )
    },
    (("c",),),
)


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "region-costs.json"
    write_region_costs(path, COSTS)
    assert read_region_costs(path) == COSTS


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data.update(schema=9), "schema: must be 1"),
        (lambda data: data["regions"][0]["modes"].pop("eager"), "each must have the mode eager"),
        (lambda data: data["regions"][0]["parameters"].pop(), "a time for each parameter"),
        (lambda data: data["regions"][0]["modes"]["eager"].update(forward_ns=-1), "'-1': must be"),
        (lambda data: data["chains"][0][0].append(3), "'3': must be text"),
        (lambda data: data.pop("regions"), "'regions'"),
        (lambda data: data.update(unmeasured=[[3]]), "'3': must be text"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, change: Any, said: str) -> None:
    path = tmp_path / "region-costs.json"
    write_region_costs(path, COSTS)
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(UserError) as raised:
        read_region_costs(path)
    assert str(raised.value).startswith(f"{path}: does not hold the costs of regions: ")
    assert said in str(raised.value)
