"""Puts the page together: style, data and script in one file, which refers to nothing else.

The page forbids itself, by its content security policy, to fetch anything. Its data is JSON in a
script element that browsers do not run; what could end that element, or open another, is escaped.

``page.html`` has the frame, ``page.css`` the style. Of the scripts, in this order: ``draw.js``
makes elements, ``charts.js`` pictures of numbers, ``timeline.js`` the timeline, ``panels.js`` and
``more_panels.js`` say what each panel shows, ``main.js`` draws them.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from byteprophet.diagnose import Diagnosis
from byteprophet.diagnose.plain import nulls
from byteprophet.report.page.lanes import timeline
from byteprophet.report.page.series import series
from byteprophet.whole_files import write_whole

_SCRIPTS = ("draw.js", "charts.js", "timeline.js", "panels.js", "more_panels.js", "main.js")

_MOST_ITERATIONS = 500


def write_page(path: Path, diagnosis: Diagnosis, data: Mapping[str, Any]) -> None:
    """Write the page about ``diagnosis`` to ``path``; ``data``: as ``plain.as_json`` has it."""
    shown = {**last_of(data), "timeline": timeline(diagnosis), "series": series(diagnosis)}
    write_whole(path, render(shown))


def last_of(data: Mapping[str, Any], most: int = _MOST_ITERATIONS) -> dict[str, Any]:
    """``data``, in which only the last iterations are listed one by one; ``counted``: of how many.

    Means, medians and shares stay those of all.
    """
    parts = data["breakdown"]
    return {
        **data,
        "counted": len(data["iterations"]),
        "iterations": data["iterations"][-most:],
        "slowest_ns": data["slowest_ns"][-most:],
        "breakdown": {**parts, "parts_ns": [rows[-most:] for rows in parts["parts_ns"]]},
    }


def render(data: Mapping[str, Any]) -> str:
    """The page; ``data`` has all that its scripts read."""
    parts = {
        "TITLE": html.escape(f"byteprophet: {data['run']}"),
        "STYLE": _asset("page.css"),
        "DATA": embedded(data),
        "SCRIPT": "\n".join(_asset(name) for name in _SCRIPTS),
    }
    # One pass: what is put in is not looked through again.
    pieces = _asset("page.html").split("@@")
    return "".join(parts[piece] if odd % 2 else piece for odd, piece in enumerate(pieces))


def embedded(data: Any) -> str:
    """JSON that may stand in a script element: ASCII, without what HTML takes for markup."""
    text = json.dumps(nulls(data), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
