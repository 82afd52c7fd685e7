"""The page about a simulated job: its time and memory, and what they are spent on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from byteprophet.report.page.build import SEARCH, SIMULATION, render
from byteprophet.report.page.drawn_lanes import apart
from byteprophet.report.page.lanes import Numbers, drawn
from byteprophet.timeline.role_lanes import Lane
from byteprophet.whole_files import write_whole


@dataclass(frozen=True)
class Shown:
    """The part of the iteration that the timeline shows: its begin, its end, and its lanes.

    Times of lanes count from the begin.
    """

    begin_ns: int
    end_ns: int
    lanes: Sequence[Lane]


def write_simulation(path: Path, data: Mapping[str, Any], shown: Shown) -> None:
    """Write the page to ``path``.

    Args:
        path: the file.
        data: as ``byteprophet.simulate.explain.plain`` has it, and with ``search``, if the job is
            the result of one.
        shown: the timeline.
    """
    kinds, names = Numbers(), Numbers()
    lanes = apart("", shown.lanes, kinds, names)
    timeline = {
        **drawn(lanes, kinds, names, 0, shown.end_ns - shown.begin_ns),
        "iterations": [],
        "begin_ns": shown.begin_ns,
    }
    kind = SEARCH if "search" in data else SIMULATION
    write_whole(path, render({**data, "timeline": timeline}, kind))
