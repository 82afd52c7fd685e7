"""How long a job computes if some of its modules run as regions.

A region's time in the job is its recorded time, multiplied by the ratio of the two modes as they
were measured alone, one after the other. So whatever makes the job slower than a lone region meets
both modes. The recorded time is taken from parameters: a region's forward lasts from where its
first parameter is needed to where the next region's first one is, and its backward lasts from the
last gradient of the modules behind it to its own last gradient. If the script accumulates
gradients, its other passes change as the recorded first forward and last backward pass do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from byteprophet.job import Model, Times
from byteprophet.job.region_costs import ModeCost, RegionCost, RegionCosts, Unit
from byteprophet.job.strategy import COMPILED, EAGER, RECOMPUTED, Region, Strategy
from byteprophet.job.times import Int64Array


def times_with(times: Times, model: Model, strategy: Strategy, costs: RegionCosts) -> Times:
    """``times``, which are those of a plain model, as the regions of ``strategy`` change them.

    Under autocast, the modules outside of them change, too. ``costs`` must have each region in its
    mode; no parameter may be in two.
    """
    regions = strategy.regions
    if strategy.autocast:
        regions = (*regions, *other_units(regions, costs))
    forward_ns, ready_ns = times.forward_ns.copy(), times.ready_ns.copy()
    backward_ns, between_ns = times.backward_ns.copy(), times.between_ns
    if between_ns is not None:
        forward_ns[..., -1] -= between_ns
    was_ns = _pass_ns(forward_ns, ready_ns, backward_ns)
    placed = [
        _Placed(costs.regions[region.modules], region.mode(strategy.autocast), model)
        for region in regions
    ]
    placed = [each for each in placed if len(each.places)]
    # The backward pass reaches the last region first; what a region saves moves all after it.
    for each in sorted(placed, key=lambda one: -one.places[-1]):
        forward = np.rint(forward_ns[..., each.places] * each.forward_ratio).astype(np.int64)
        if each.at_once:
            forward[..., -1] = forward.sum(axis=2)
            forward[..., :-1] = 0
        forward_ns[..., each.places] = forward
        ready = ready_ns[..., each.places]
        behind = ready_ns[..., each.places[-1] + 1 :]
        end_ns = ready.max(axis=2, keepdims=True)
        begin_ns = np.minimum(behind.max(axis=2, keepdims=True, initial=0), end_ns)
        took_ns = (end_ns - begin_ns) * each.backward_ratio
        saved_ns = end_ns - begin_ns - np.rint(took_ns).astype(np.int64)
        ready_ns = np.where(ready_ns >= end_ns, ready_ns - saved_ns, ready_ns)
        ready_ns[..., each.places] = begin_ns + np.rint(took_ns * each.ready).astype(np.int64)
        backward_ns -= saved_ns[..., 0]
    if between_ns is not None:
        ratios = _pass_ns(forward_ns, ready_ns, backward_ns) / np.maximum(1, was_ns)
        between_ns = np.rint(between_ns * ratios).astype(np.int64)
        forward_ns[..., -1] += between_ns
    return replace(
        times,
        forward_ns=forward_ns,
        ready_ns=ready_ns,
        backward_ns=backward_ns,
        between_ns=between_ns,
    )


def _pass_ns(forward_ns: Int64Array, ready_ns: Int64Array, backward_ns: Int64Array) -> Int64Array:
    """What a forward and a backward pass take, (W, I)."""
    passed_ns: Int64Array = forward_ns.sum(axis=2) + np.maximum(backward_ns, ready_ns.max(axis=2))
    return passed_ns


def compile_ns(strategy: Strategy, costs: RegionCosts) -> int:
    """How long a process takes to compile the regions; those of equal structure cost once.

    torch keeps compiled graphs in a cache on disk, so that a second process takes less.
    """
    distinct = {
        costs.regions[region.modules].modes[region.mode(strategy.autocast)]
        for region in strategy.regions
    }
    return sum(cost.compile_ns for cost in distinct)


def other_units(regions: Iterable[Region], costs: RegionCosts) -> list[Region]:
    """Units of all chains but the whole model, so that no parameter is in two, or in ``regions``.

    Of a unit and those that it consists of, the unit counts, which comes first.
    """
    taken = {name for region in regions for name in costs.regions[region.modules].parameters}
    others = []
    for unit in (unit for chain in costs.chains[1:] for unit in chain if unit in costs.regions):
        held = {*costs.regions[unit].parameters}
        if not taken & held:
            others.append(Region(unit))
            taken |= held
    return others


def recompute_ns(costs: RegionCosts, unit: Unit) -> int:
    """What recomputing a unit takes, per iteration; 0 if it cannot be recomputed."""
    cost = costs.regions.get(unit)
    if cost is None or RECOMPUTED not in cost.modes:
        return 0
    return max(1, cost.modes[RECOMPUTED].both_ns - cost.modes[EAGER].both_ns)


class _Placed:
    """A region, with the places of its parameters in forward order.

    ``ready``: when each gradient is there, as a share of the region's backward pass. ``at_once``:
    it needs all its parameters before it begins.
    """

    def __init__(self, cost: RegionCost, name: str, model: Model) -> None:
        mode, eager = cost.modes[name], cost.modes[EAGER]
        self.at_once = COMPILED in name.split("-")
        self.forward_ratio = _ratio(mode.forward_ns, eager.forward_ns)
        self.backward_ratio = _ratio(mode.backward_ns, eager.backward_ns)
        found = sorted(
            (model.places[name], share)
            for name, share in zip(cost.parameters, _shares(mode), strict=True)
            if name in model.places
        )
        self.places = np.array([place for place, _ in found], dtype=np.int64)
        self.ready = np.array([share for _, share in found])


def _ratio(one_ns: int, other_ns: int) -> float:
    return one_ns / other_ns if other_ns else 1.0


def _shares(mode: ModeCost) -> list[float]:
    last_ns = max(mode.ready_ns, default=0)
    return [_ratio(ready_ns, last_ns) for ready_ns in mode.ready_ns]
