"""Lanes of a replayed job as the page's timeline draws them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from byteprophet.report.page.lanes import Lane as DrawnLane
from byteprophet.report.page.lanes import Numbers, Slices
from byteprophet.timeline.role_lanes import Lane


def apart(role: str, lanes: Iterable[Lane], kinds: Numbers, names: Numbers) -> list[DrawnLane]:
    """Lanes whose slices do not overlap, in the order of ``lanes``; empty slices are left out."""
    return [
        (role or lane.role, one.label if number == 0 else f"{one.label} {number + 1}", slices)
        for lane in lanes
        for number, one in enumerate(lane.at(lane.end_ns > lane.begin_ns).spread())
        if len((slices := _slices(one, kinds, names)).kind)
    ]


def _slices(lane: Lane, kinds: Numbers, names: Numbers) -> Slices:
    return Slices(
        lane.begin_ns,
        lane.end_ns,
        kinds.of_all(lane.kind),
        names.of_all(lane.name),
        np.asarray(lane.size_bytes, np.int64),
    )
