"""The picture of a grid: per cell, how far every policy is from the bound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MultipleLocator, NullLocator

from byteprophet.report.plot import BOUND, legend, place, style_of

_WIDEST = 4.0  # times the bound; what is farther stands at the edge


def draw_ratios(report: Mapping[str, Any]) -> Figure:
    """Iteration over bound with its 95% interval, per cell; schedulers at their own defaults.

    Cells that the processor limits are marked with a star. Settings that were tried are left out.
    """
    cells = report["cells"]
    figure = Figure(figsize=(8.4, 1.6 + 0.52 * len(cells)), layout="constrained")
    axes = figure.add_subplot()
    drawn = [
        [policy for policy in cell["policies"] if policy["variant"] == policy["scheduler"]]
        for cell in cells
    ]
    names = sorted({policy["scheduler"] for row in drawn for policy in row}, key=place)
    for height, row in enumerate(drawn):
        for policy in row:
            colour, marker = style_of(policy["scheduler"])
            spread = policy["bound_ratio"]
            value = min(spread["value"], _WIDEST)
            # Side by side, so that one does not hide another.
            shift = 0.6 * (names.index(policy["scheduler"]) / max(1, len(names) - 1) - 0.5)
            axes.plot(
                [min(spread["low"], _WIDEST), min(spread["high"], _WIDEST)],
                [height + shift] * 2,
                color=colour,
                linewidth=1.2,
            )
            axes.plot(value, height + shift, marker, color=colour, label=policy["scheduler"])
    axes.axvline(1, label="lower bound", **BOUND)
    axes.set_xscale("log")
    axes.set_xlim(0.97, max(1.3, *axes.get_xlim()))
    axes.xaxis.set_major_locator(MultipleLocator(0.25))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_yticks(
        range(len(cells)), [cell["cell"] + " *" * cell["cpu_limited"] for cell in cells]
    )
    axes.invert_yaxis()
    axes.grid(color="#dddddd", linewidth=0.7, axis="x")
    axes.set_xlabel(
        "iteration time over the lower bound (95% interval); * the processor is the limit"
    )
    axes.set_title(f"grid {report['grid']}: paced compute, real bytes", loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    legend(figure)
    return figure
