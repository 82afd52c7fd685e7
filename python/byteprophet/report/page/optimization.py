"""The page about an optimisation: what was decided, and what that brings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from byteprophet.report.page.build import OPTIMIZATION, render
from byteprophet.report.page.drawn_lanes import apart
from byteprophet.report.page.lanes import Numbers, drawn
from byteprophet.timeline.role_lanes import Lane
from byteprophet.whole_files import write_whole

Iteration = tuple[int, Sequence[Lane]]
"""Its length in ns, and what happens in it, from 0 on."""


def write_optimization(
    path: Path, data: Mapping[str, Any], before: Iteration, after: Iteration
) -> None:
    """Write the page to ``path``; ``data``: as ``byteprophet.optimize.plain`` has it."""
    timeline = _timeline({"before": before, "after": after})
    shown = {**data, "run": f"{data['run']}, optimised", "timeline": timeline}
    write_whole(path, render(shown, OPTIMIZATION))


def _timeline(iterations: Mapping[str, Iteration]) -> dict[str, Any]:
    """Both iterations on one axis; ``ends``: where each of them ends, in units."""
    kinds, names = Numbers(), Numbers()
    lanes = [
        lane for role, (_, shown) in iterations.items() for lane in apart(role, shown, kinds, names)
    ]
    length_ns = max(length for length, _ in iterations.values())
    found = drawn(lanes, kinds, names, 0, length_ns)
    ends = {role: length // found["unit_ns"] for role, (length, _) in iterations.items()}
    roles = {role: shown[0].role if shown else "" for role, (_, shown) in iterations.items()}
    return {**found, "left_out": 0, "iterations": [], "ends": ends, "roles": roles}
