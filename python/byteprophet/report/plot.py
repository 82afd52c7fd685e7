"""Pictures of results, drawn without a display.

All functions take rows as saved by ``byteprophet bench``. A row with ``"paced": false`` comes from
real training; the pictures mark these rows. Colours are Okabe and Ito's, which colour-blind readers
can tell apart; markers carry the same information.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from byteprophet.whole_files import whole_file

Row = Mapping[str, Any]

# scheduler: colour, marker. In the order of the legend.
_STYLES = {
    "stock": ("#888888", "X"),
    "fifo": ("#E69F00", "s"),
    "p3": ("#56B4E9", "^"),
    "bytescheduler": ("#CC79A7", "v"),
    "bytescheduler-reduce": ("#D55E00", "<"),
    "prophet-paper": ("#009E73", "D"),
    "prophet": ("#0072B2", "o"),
}
_OTHER = ("#000000", "P")
BOUND: dict[str, Any] = {
    "color": "#000000",
    "linestyle": (0, (5, 3)),
    "linewidth": 1.4,
    "zorder": 1.5,
}


def draw_rates(rows: Sequence[Row]) -> Figure:
    """Rate over bandwidth: a panel per workload, a line per scheduler, the bound dashed.

    Rows that differ only in their round are one point, the median. Rows without a limit on the
    bandwidth have no place on the axis and are left out.
    """
    rows = [row for row in rows if row["bandwidth_bps"] is not None]
    workloads = _distinct(rows, "workload")
    figure = Figure(figsize=(1.2 + 4.6 * max(1, len(workloads)), 4.4), layout="constrained")
    for axes, workload in zip(_panels(figure, len(workloads)), workloads, strict=True):
        _draw_panel(axes, [row for row in rows if row["workload"] == workload])
    legend(figure)
    return figure


def draw_iterations(rows: Sequence[Row]) -> Figure:
    """Iteration times of the schedulers on one link: a bar each, p10 to p90, the bound dashed."""
    figure = Figure(figsize=(6.4, 1.4 + 0.42 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    for position, row in enumerate(rows):
        times_ms = {key: value / 1e6 for key, value in row["iteration_ns"].items()}
        middle = times_ms["median"]
        spread = [[middle - times_ms["p10"]], [times_ms["p90"] - middle]]
        colour, _ = style_of(row["scheduler"])
        axes.barh(position, middle, color=colour, height=0.62)
        axes.errorbar(middle, position, xerr=spread, color="#333333", linewidth=1.2, capsize=3)
        axes.annotate(
            f"{middle:.0f} ms",
            (times_ms["p90"], position),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
        )
    bounds = [row["bound_ns"] / 1e6 for row in rows if row["bound_ns"]]
    if bounds:
        axes.axvline(min(bounds), label=f"lower bound, {min(bounds):.0f} ms", **BOUND)
        axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0)
    axes.set_yticks(range(len(rows)), [row["scheduler"] for row in rows])
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlim(left=0)
    axes.set_xlabel("iteration time in ms: median, p10 to p90")
    axes.set_title(_title(rows[0]), loc="left", fontsize="medium")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write ``figure`` to ``path``; the suffix says in which format."""
    with whole_file(path) as partial:
        figure.savefig(partial, dpi=150, format=path.suffix[1:] or None)


def _draw_panel(axes: Axes, rows: Sequence[Row]) -> None:
    rates_bps = sorted(set(_distinct(rows, "bandwidth_bps")))
    at = [rate_bps / 1e9 for rate_bps in rates_bps]
    for scheduler in sorted(_distinct(rows, "scheduler"), key=place):
        points = {
            rate_bps: median(
                row["samples_per_s"]
                for row in rows
                if (row["scheduler"], row["bandwidth_bps"]) == (scheduler, rate_bps)
            )
            for rate_bps in rates_bps
            if any((r["scheduler"], r["bandwidth_bps"]) == (scheduler, rate_bps) for r in rows)
        }
        colour, marker = style_of(scheduler)
        axes.plot(
            [rate_bps / 1e9 for rate_bps in points],
            list(points.values()),
            color=colour,
            marker=marker,
            markersize=6,
            linewidth=2.4 if scheduler == "prophet" else 1.5,
            zorder=3 if scheduler == "prophet" else 2,
            label=scheduler,
        )
    bounds = dict(_best_rates(rows))
    if bounds:
        known = [rate_bps for rate_bps in rates_bps if rate_bps in bounds]
        axes.plot(
            [rate_bps / 1e9 for rate_bps in known],
            [bounds[rate_bps] for rate_bps in known],
            label="upper bound",
            **BOUND,
        )
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(at))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([f"{rate:g}" for rate in at])
    axes.set_xlabel("bandwidth of each worker's link in Gbit/s")
    axes.set_ylabel("samples/s per worker")
    axes.set_ylim(bottom=0)
    axes.set_title(_title(rows[0], link=False), loc="left", fontsize="medium")
    axes.grid(color="#dddddd", linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)


def _best_rates(rows: Sequence[Row]) -> Iterator[tuple[int, float]]:
    """Per bandwidth the rate that no schedule can exceed, by the lowest bound of the rows."""
    for rate_bps in _distinct(rows, "bandwidth_bps"):
        there = [row for row in rows if row["bandwidth_bps"] == rate_bps and row["bound_ns"]]
        if there:
            samples = there[0]["samples_per_s"] * there[0]["iteration_ns"]["median"]
            yield rate_bps, samples / min(row["bound_ns"] for row in there)


def legend(figure: Figure) -> None:
    """One legend for all panels, below them."""
    entries: dict[Any, Any] = {}
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    if entries:
        names = sorted(entries, key=place)
        figure.legend(
            [entries[name] for name in names],
            names,
            loc="outside lower center",
            ncols=len(names),
            frameon=False,
        )


def _title(row: Row, link: bool = True) -> str:
    kind = "paced compute, real bytes" if row["paced"] else "real training"
    roles = f"{row['workers']} workers, {row['servers']} server{'s' * (row['servers'] > 1)}"
    where = ""
    if link:
        rate_bps = row["bandwidth_bps"]
        where = ", links without limit" if rate_bps is None else f", {rate_bps / 1e9:g} Gbit/s"
    return f"{row['workload']}: {kind}\n{roles}{where}"


def _panels(figure: Figure, count: int) -> list[Axes]:
    return [figure.add_subplot(1, count, number + 1) for number in range(count)]


def _distinct(rows: Sequence[Row], field: str) -> list[Any]:
    return list(dict.fromkeys(row[field] for row in rows))


def style_of(scheduler: str) -> tuple[str, str]:
    """Colour and marker of a scheduler."""
    return _STYLES.get(scheduler, _OTHER)


def place(name: str) -> tuple[int, str]:
    """Known schedulers in the order of their styles, then others, then the bound."""
    order = list(_STYLES)
    if name in order:
        return order.index(name), name
    return len(order) + name.endswith(" bound"), name
