"""Puts the page together: style, data and script in one file, which refers to nothing else.

The page forbids itself, by its content security policy, to fetch anything. Its data is JSON in a
script element that browsers do not run; what could end that element, or open another, is escaped.

``page.html`` has the frame, ``page.css`` the style. uPlot draws all charts
(``library.py``). Of our scripts, in this order: ``draw.js`` makes elements, ``charts.js`` and
``lanes.js`` say how uPlot draws lines and boxes, ``timeline.js`` the timeline. What each panel of a
page shows, and their order, is in the scripts of its ``Kind``. ``main.js`` puts them into the page.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from byteprophet.diagnose import Diagnosis
from byteprophet.diagnose.plain import nulls
from byteprophet.report.page import library
from byteprophet.report.page.lanes import timeline
from byteprophet.report.page.series import series
from byteprophet.whole_files import write_whole


@dataclass(frozen=True)
class Kind:
    """A kind of page: the scripts that have its panels, and its last lines, as HTML."""

    panels: tuple[str, ...]
    footer: str


REPORT = Kind(
    ("panels.js", "more_panels.js"),
    "Written by <code>byteprophet report</code>. Times of parts are means over iterations, others\n"
    "medians, unless something else is said. docs/report.md says how each is found.",
)
OPTIMIZATION = Kind(
    ("optimization.js", "optimization_jobs.js"),
    "Written by <code>byteprophet optimize</code>. Times are medians of iterations.\n"
    "docs/optimizer.md says how each is found.",
)
SIMULATION = Kind(
    ("simulation.js", "simulation_memory.js"),
    "Written by <code>byteprophet simulate</code>. Nothing was measured: all figures are\n"
    "predicted. docs/simulator.md says how, and docs/simulator-accuracy.md how wrong predictions\n"
    "were.",
)
SEARCH = Kind((*SIMULATION.panels, "search.js"), SIMULATION.footer)

_MOST_ITERATIONS = 500
_MOST_PARTS = 40
"""Iterations whose parts are drawn, of one worker at a time."""


def write_page(path: Path, diagnosis: Diagnosis, data: Mapping[str, Any]) -> None:
    """Write the page about ``diagnosis`` to ``path``; ``data``: as ``plain.as_json`` has it."""
    shown = {**last_of(data), "timeline": timeline(diagnosis), "series": series(diagnosis)}
    write_whole(path, render(shown))


def last_of(data: Mapping[str, Any], most: int = _MOST_ITERATIONS) -> dict[str, Any]:
    """``data``, in which only the last iterations are listed one by one; ``counted``: of how many.

    Their parts are those of even fewer. Means, medians and shares stay those of all.
    """
    parts = data["breakdown"]
    return {
        **data,
        "counted": len(data["iterations"]),
        "iterations": data["iterations"][-most:],
        "iterations_ns": data["iterations_ns"][-most:],
        "breakdown": {
            **parts,
            "parts_ns": [rows[-min(most, _MOST_PARTS) :] for rows in parts["parts_ns"]],
        },
    }


def render(data: Mapping[str, Any], kind: Kind = REPORT) -> str:
    """The page; ``data`` has all that its scripts read."""
    scripts = ("draw.js", "charts.js", "lanes.js", "timeline.js", *kind.panels, "main.js")
    # A directory's name need not be Unicode.
    title = f"byteprophet: {data['run']}".encode("utf-8", "backslashreplace").decode()
    parts = {
        "TITLE": html.escape(title),
        "STYLE": f"{library.style()}\n{_asset('page.css')}",
        "DATA": embedded(data),
        "LICENCE": _asset("uplot-licence.txt"),
        "LIBRARY": library.script(),
        "SCRIPT": "\n".join(_asset(name) for name in scripts),
        "FOOTER": kind.footer,
    }
    # One pass: what is put in is not looked through again.
    pieces = _asset("page.html").split("@@")
    return "".join(parts[piece] if odd % 2 else piece for odd, piece in enumerate(pieces))


def embedded(data: Any) -> str:
    """JSON that may stand in a script element: ASCII, without what HTML takes for markup."""
    try:
        text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    except ValueError:  # a number that JSON does not have
        text = json.dumps(nulls(data), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
