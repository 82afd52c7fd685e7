"""Times of jobs whose modules run as regions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from byteprophet.job import Model, Parameter, Strategy, Times
from byteprophet.job.region_costs import ModeCost, RegionCost, RegionCosts
from byteprophet.job.strategy import BF16, COMPILED, EAGER, Region
from byteprophet.optimize.regions import times_with

NAMES = ("a.weight", "b.weight", "b.bias", "c.weight")
MODEL = Model(tuple(Parameter(name, 400) for name in NAMES))
# The backward pass takes 40 (c), then 30 (b), then 20 (a), and 10 more to its end.
TIMES = Times(
    forward_ns=np.array([[[10, 12, 8, 30]]]),
    ready_ns=np.array([[[90, 70, 60, 40]]]),
    backward_ns=np.array([[100]]),
    update_ns=np.array([[[1, 2, 3, 4]]]),
)


def costs(modules: tuple[str, ...], names: tuple[str, ...], compiled: ModeCost) -> RegionCosts:
    """Alone, the eager modules take 100 forward and 100 backward."""
    eager = ModeCost(100, 100, (100,) * len(names))
    cost = RegionCost(names, {EAGER: eager, COMPILED: compiled}, {})
    return RegionCosts((), {modules: cost})


def test_a_region_in_the_middle() -> None:
    """b takes half its forward and two thirds of its backward, and needs both tensors at once."""
    region = Region(("b",), compiled=True)
    known = costs(region.modules, NAMES[1:3], ModeCost(50, 67, (67, 67), 9))
    changed = times_with(TIMES, MODEL, Strategy(regions=(region,)), known)
    assert changed.forward_ns.tolist() == [[[10, 0, 10, 30]]]
    assert changed.ready_ns.tolist() == [[[80, 60, 60, 40]]]
    assert changed.backward_ns.tolist() == [[90]]
    assert changed.update_ns is TIMES.update_ns


def test_a_region_of_two_modules_completes_its_gradients_together() -> None:
    region = Region(("b", "c"), compiled=True)
    known = costs(region.modules, NAMES[1:], ModeCost(100, 100, (100, 100, 100), 9))
    changed = times_with(TIMES, MODEL, Strategy(regions=(region,)), known)
    assert changed.forward_ns.tolist() == [[[10, 0, 0, 50]]]
    assert changed.ready_ns.tolist() == [[[90, 70, 70, 70]]]
    assert changed.backward_ns.tolist() == [[100]]


def test_passes_between_change_as_the_others_do() -> None:
    """Two further passes, of 160 each. Where modules take half of their time, a pass takes 85."""
    region = Region(("a", "b", "c"), compiled=True)
    known = costs(region.modules, NAMES, ModeCost(50, 50, (50,) * 4, 9))
    forward_ns = TIMES.forward_ns + np.array([0, 0, 0, 320])
    held = replace(TIMES, forward_ns=forward_ns, between_ns=np.array([[320]]))
    changed = times_with(held, MODEL, Strategy(regions=(region,)), known)
    assert changed.forward_ns.tolist() == [[[0, 0, 0, 30 + 170]]]
    assert changed.between_ns is not None
    assert changed.between_ns.tolist() == [[170]]
    assert changed.ready_ns.max() == 45
    assert changed.backward_ns.tolist() == [[55]]


@pytest.mark.parametrize("order", [1, -1])
def test_what_regions_save_adds_up(order: int) -> None:
    """The first and the last module, in either order of the strategy."""
    first, last = Region(("a",), compiled=True), Region(("c",), compiled=True)
    half = ModeCost(50, 50, (50,), 9)
    known = RegionCosts(
        (),
        {
            **costs(("a",), NAMES[:1], half).regions,
            **costs(("c",), NAMES[3:], half).regions,
        },
    )
    changed = times_with(TIMES, MODEL, Strategy(regions=(first, last)[::order]), known)
    assert changed.forward_ns.tolist() == [[[5, 12, 8, 15]]]
    assert changed.ready_ns.tolist() == [[[60, 50, 40, 20]]]
    assert changed.backward_ns.tolist() == [[70]]


def test_under_autocast_the_other_units_change_too() -> None:
    """b is compiled; a and c take half; b's own ratio is that of its mode under autocast."""
    half = ModeCost(50, 50, (50,), 0)
    eager = ModeCost(100, 100, (100,))
    regions = {
        ("a",): RegionCost(NAMES[:1], {EAGER: eager, BF16: half}, {}),
        ("b",): RegionCost(
            NAMES[1:3],
            {
                EAGER: ModeCost(100, 100, (100, 60)),
                COMPILED: ModeCost(90, 90, (90, 90)),
                f"{COMPILED}-{BF16}": ModeCost(50, 50, (50, 50)),
            },
            {},
        ),
        ("c",): RegionCost(NAMES[3:], {EAGER: eager, BF16: half}, {}),
    }
    known = RegionCosts(((("",),), (("a",), ("b",), ("c",))), regions)
    strategy = Strategy(regions=(Region(("b",), compiled=True),), autocast=True)
    changed = times_with(TIMES, MODEL, strategy, known)
    assert changed.forward_ns.tolist() == [[[5, 0, 10, 15]]]
    assert changed.ready_ns.tolist() == [[[45, 35, 35, 20]]]
    assert changed.backward_ns.tolist() == [[55]]
    # What c consists of is measured, too, but does not take half of a half.
    within = {**regions, ("c.d",): RegionCost(NAMES[3:], {EAGER: eager, BF16: half}, {})}
    nested = RegionCosts((*known.chains, (("c.d",),)), within)
    again = times_with(TIMES, MODEL, strategy, nested)
    assert again.forward_ns.tolist() == changed.forward_ns.tolist()
    assert again.ready_ns.tolist() == changed.ready_ns.tolist()
