"""What is measured first when the time may not suffice for all regions."""

from __future__ import annotations

import itertools

from torch import nn

from byteprophet.job.region_costs import Unit
from byteprophet.torch.regions.calls import ModuleCall
from byteprophet.torch.regions.measuring_order import measuring_order


def _order(took_ns: dict[str, int], structures: dict[str, str]) -> list[str]:
    """The runs in their order, each as the names of its modules."""
    calls = {
        name: ModuleCall(name, nn.Identity(), (), {}, took_ns=ns) for name, ns in took_ns.items()
    }
    units: list[list[Unit]] = [[("whole",)], [(name,) for name in took_ns if name != "whole"]]
    found = measuring_order(units, calls, lambda run: tuple(structures[name] for name in run))
    return ["".join(run) for run in found]


def test_a_structure_that_takes_most_in_all_comes_before_a_longer_single_one() -> None:
    found = _order(
        {"whole": 100, "a": 40, "b": 25, "c": 25, "d": 10},
        {"whole": "w", "a": "long", "b": "twin", "c": "twin", "d": "short"},
    )
    assert found[:4] == ["b", "c", "a", "d"]
    assert found[4:6] == ["whole", "abcd"]


def test_each_run_of_up_to_four_units_is_there() -> None:
    names = "abcde"
    found = _order(
        {"whole": 100} | dict.fromkeys(names, 10), {"whole": "w"} | dict.fromkeys(names, "u")
    )
    runs = {names[first:last] for first, last in itertools.combinations(range(6), 2)}
    assert {*found} == runs | {"whole"}
