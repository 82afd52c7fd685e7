"""The picture of ``map.py``: a column per model and link, delays to the right, message costs up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, TwoSlopeNorm
from matplotlib.figure import Figure

from byteprophet import schedulers

Row = Mapping[str, Any]

OURS = schedulers.DEFAULT
LEVEL = 0.005
"""Iterations that differ by less are level."""


def baselines(row: Row) -> dict[str, int]:
    """Iteration times, each with the best settings for this cell, of all but ours."""
    return {
        name: result["iteration_ns"] for name, result in row["schedulers"].items() if name != OURS
    }


def advantage(row: Row) -> float:
    """The best tuned baseline's iteration time over that of ours with its default settings."""
    return min(baselines(row).values()) / int(row["schedulers"][OURS]["default_ns"])


def winner(row: Row) -> str:
    """Whose iterations are shortest; "level" if ours and the best baseline's are alike."""
    if abs(advantage(row) - 1) < LEVEL:
        return "level"
    best = baselines(row)
    return OURS if advantage(row) > 1 else min(best, key=best.__getitem__)


def draw_map(rows: Sequence[Row]) -> Figure:
    """Four maps per model and link: who wins by how much, and three distances to the bound."""
    columns = list(dict.fromkeys((row["workload"], row["link"]) for row in rows))
    figure = Figure(figsize=(1.6 + 2.9 * len(columns), 11.2), layout="constrained")
    grid = figure.subplots(4, len(columns), squeeze=False)
    for place, (workload, link) in enumerate(columns):
        here = [row for row in rows if (row["workload"], row["link"]) == (workload, link)]
        panels = [axes[place] for axes in grid]
        _draw_winner(panels[0], here)
        ours = [row["schedulers"][OURS] for row in here]
        best = [min(baselines(row).values()) for row in here]
        _draw_ratio(panels[1], here, [result["default_ns"] for result in ours])
        _draw_ratio(panels[2], here, [result["iteration_ns"] for result in ours])
        _draw_ratio(panels[3], here, best)
        rate = here[0]["bandwidth_bps"] / 1e9
        panels[0].set_title(
            f"{workload}\nlink {link:g} x compute ({rate:.2g} Gbit/s)", fontsize="medium"
        )
        panels[3].set_xlabel("delay, one way, in us")
    names = (
        f"best tuned baseline / {OURS}",
        f"{OURS} / bound",
        f"{OURS}, best partition / bound",
        "best tuned baseline / bound",
    )
    for axes, name in zip(grid, names, strict=True):
        axes[0].set_ylabel(f"{name}\n\nmessage cost in us")
    figure.suptitle(
        f"Simulated: {OURS} at its default settings against the best baseline, tuned per cell. "
        f"Above: who wins (level: within {LEVEL:.1%})",
        fontsize="medium",
    )
    return figure


def _draw_winner(axes: Axes, rows: Sequence[Row]) -> None:
    values = [advantage(row) for row in rows]
    texts = [f"{value:.3f}\n{_short(winner(row))}" for value, row in zip(values, rows, strict=True)]
    norm = TwoSlopeNorm(vmin=0.6, vcenter=1.0, vmax=1.4)
    _heat(axes, rows, values, texts, {"cmap": "RdBu", "norm": norm})


def _draw_ratio(axes: Axes, rows: Sequence[Row], times_ns: Sequence[int]) -> None:
    values = [time_ns / row["bound_ns"] for time_ns, row in zip(times_ns, rows, strict=True)]
    texts = [f"{value:.3f}" for value in values]
    _heat(axes, rows, values, texts, {"cmap": "YlOrRd", "norm": LogNorm(vmin=1.0, vmax=2.0)})


def _heat(
    axes: Axes,
    rows: Sequence[Row],
    values: Sequence[float],
    texts: Sequence[str],
    colours: Mapping[str, Any],
) -> None:
    delays = sorted({row["delay_ns"] for row in rows})
    costs = sorted({row["message_cost_ns"] for row in rows})
    cells = [[float("nan")] * len(delays) for _ in costs]
    for row, value, text in zip(rows, values, texts, strict=True):
        x, y = delays.index(row["delay_ns"]), costs.index(row["message_cost_ns"])
        cells[y][x] = value
        axes.text(x, y, text, ha="center", va="center", fontsize=7)
    axes.imshow(cells, origin="lower", aspect="auto", alpha=0.6, **colours)
    axes.set_xticks(range(len(delays)), [f"{delay / 1e3:g}" for delay in delays])
    axes.set_yticks(range(len(costs)), [f"{cost / 1e3:g}" for cost in costs])


def _short(name: str) -> str:
    return {"bytescheduler": "bytesch."}.get(name, name)
