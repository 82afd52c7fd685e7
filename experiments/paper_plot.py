"""The picture of a table: rates in shares of the bound, and prophet's lead, beside the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from paper_table import POLICIES

from byteprophet.report.plot import BOUND, style_of

_P3_4MB = ("#004D66", "p")
_PAPER: dict[str, Any] = {"markerfacecolor": "none", "linestyle": "none", "markeredgewidth": 1.4}
_SIMULATED: dict[str, Any] = {"marker": "|", "linestyle": "none", "markersize": 9}

Figures = Mapping[str, Any]


def draw_table(result: Figures) -> Figure:
    """A line of marks per row in both panels; hollow ones are the paper's, bars simulated."""
    rows: Sequence[Figures] = result["rows"]
    figure = Figure(figsize=(13, 2.4 + 0.75 * len(rows)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for height, row in enumerate(rows):
        for place, name in enumerate(row["policies"]):
            at = height + 0.7 * (place / max(1, len(POLICIES) - 1) - 0.5)
            _draw_rate(left, row, name, at)
            _draw_over(right, row, name, at)
    left.axvline(1, **BOUND)
    right.axvline(1, color="#888888", linewidth=1)
    left.set_yticks(range(len(rows)), [row["label"] for row in rows])
    left.set_ylabel(result["axis"])
    left.invert_yaxis()
    left.set_xlabel("rate over the rate that the bound allows")
    right.set_xlabel("prophet's speed over the policy's (95% interval)")
    left.set_xlim(left=0)
    for axes in (left, right):
        axes.grid(color="#dddddd", linewidth=0.7, axis="x")
        axes.spines[["top", "right"]].set_visible(False)
        for height in range(1, len(rows)):
            axes.axhline(height - 0.5, color="#eeeeee", linewidth=0.7)
    slowed = f", slowed {result['slowed']} times" if result["slowed"] != 1 else ""
    figure.suptitle(
        f"{result['title']}{slowed}\npaced compute, real bytes; * the processor is the limit",
        x=0.01,
        ha="left",
    )
    handles = [
        *(_mark(name, label=name) for name in POLICIES),
        Line2D([], [], color="#333333", marker="o", label="the paper's (hollow)", **_PAPER),
        Line2D([], [], color="#333333", label="simulated", **_SIMULATED),
        Line2D([], [], label="bound", **BOUND),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=6, frameon=False)
    return figure


def _draw_rate(axes: Axes, row: Figures, name: str, at: float) -> None:
    policy = row["policies"][name]
    bound = row["bound_rate"]
    colour, marker = _style(name)
    if policy["rate"] is not None:
        axes.plot(policy["rate"] / bound, at, marker, color=colour)
        if policy["cpu_limited"]:
            axes.annotate("*", (policy["rate"] / bound, at), (5, -5), textcoords="offset points")
    if "simulated_rate" in policy:
        axes.plot(policy["simulated_rate"] / bound, at, color=colour, **_SIMULATED)
    if row["paper"].get(name):
        axes.plot(row["paper"][name] / bound, at, color=colour, marker=marker, **_PAPER)


def _draw_over(axes: Axes, row: Figures, name: str, at: float) -> None:
    policy = row["policies"][name]
    colour, marker = _style(name)
    over = policy["over"]
    if over is not None:
        axes.plot([over["low"], over["high"]], [at, at], color=colour, linewidth=1.2)
        axes.plot(over["value"], at, marker, color=colour)
    if policy["paper_over"] is not None and name in row["paper"]:
        axes.plot(policy["paper_over"], at, color=colour, marker=marker, **_PAPER)


def _mark(name: str, label: str) -> Line2D:
    colour, marker = _style(name)
    return Line2D([], [], color=colour, marker=marker, linestyle="none", label=label)


def _style(name: str) -> tuple[str, str]:
    return _P3_4MB if name == "p3 at 4 MB" else style_of(name)
