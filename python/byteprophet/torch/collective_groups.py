"""Which gradients travel together, and when: the plan that all ranks share, as plain data.

A group's *reduction* leaves every rank with the average of its share of the group's gradients. Then
either the group is *whole*: the averages are gathered, and every rank updates all of it; or it is
*shared*: every rank updates its share, and the new parameters are gathered. ``reduce_place`` and
``gather_place`` say when, within an iteration: of what can be sent, the smallest place goes first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from byteprophet.allreduce.groups import Groups
from byteprophet.allreduce.model import Order
from byteprophet.allreduce.order import allreduce, dear
from byteprophet.allreduce.timing import Link, Parameter, Timing

PLACES = 1 << 20  # of an iteration
_ANY_LINK = Link(ranks=2, bandwidth_bps=10**9)


@dataclass(frozen=True)
class Size:
    """Of a parameter and its gradient; a plan keeps no tensor alive."""

    elements: int
    size_bytes: int
    dtype: torch.dtype


@dataclass(frozen=True)
class Group:
    """Parameters of one type whose halves travel together, in the order of readiness."""

    parameters: tuple[str, ...]
    reduce_place: int
    gather_place: int
    whole: bool


def by_rule(
    mode: str,
    sizes: Mapping[str, Size],
    ready: Sequence[str],
    needed: Sequence[str],
    rule: Callable[[Timing], Groups],
    shareable: bool,
) -> list[Group]:
    """Groups that ``rule`` makes of neighbours in the order ``ready``; no times are known.

    ``needed``: the order in which forward needs the parameters. ``shareable``: whether ranks may
    update shares. ``"dear-planned"`` without a plan is DeAR that gathers gradients.
    """
    if not needed:
        return []
    turn = {name: place for place, name in enumerate(ready)}
    timing = Timing(
        tuple(Parameter(name, max(1, sizes[name].size_bytes), turn[name], 1) for name in needed),
        len(ready),
        _ANY_LINK,
    )
    groups = rule(timing)
    order = (allreduce if mode == "allreduce" else dear)(timing, groups)
    return arranged(sizes, needed, groups, order, shareable and mode == "dear")


def arranged(
    sizes: Mapping[str, Size],
    needed: Sequence[str],
    groups: Groups,
    order: Order,
    shareable: bool,
) -> list[Group]:
    """``groups`` of places in ``needed``, in ``order``; those with several types are divided."""
    made: list[Group] = []
    for number, places in enumerate(groups):
        members: dict[torch.dtype, list[str]] = {}
        for place in places:
            name = needed[place]
            members.setdefault(sizes[name].dtype, []).append(name)
        whole = not (shareable and order.after_step[number])
        made.extend(
            Group(tuple(names), order.reduce[number], order.gather[number], whole)
            for names in members.values()
        )
    return made
