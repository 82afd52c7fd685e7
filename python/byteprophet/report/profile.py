"""A profile as tables on the terminal and as a picture: the paper's Figure 4."""

from __future__ import annotations

from matplotlib.figure import Figure
from rich import box
from rich.console import Group
from rich.table import Table

from byteprophet.profile import Profile

_COLOURS = ("#0072B2", "#E69F00")  # Okabe and Ito's; neighbours differ


def profile_tables(profile: Profile) -> Group:
    """What was learned, the bursts, the tensors."""
    batch = "not known" if profile.batch_size is None else str(profile.batch_size)
    summary = (
        f"Profile {profile.number} of rank {profile.rank} ({profile.scheduler}, {profile.workers} "
        f"workers), from {profile.iterations} iterations: {len(profile.tensors)} tensors, "
        f"{profile.size_bytes / 1e6:.1f} MB, batch {batch}, forward "
        f"{profile.forward_ns / 1e6:.1f} ms, backward {profile.backward_ns / 1e6:.1f} ms, "
        f"{len(profile.bursts)} bursts"
    )
    return Group(summary, _bursts(profile), _tensors(profile))


def _bursts(profile: Profile) -> Table:
    table = _table("Bursts, from the first ready gradient", "burst", "ready ms", "± ms", "after ms")
    table.add_column("tensors", justify="right")
    table.add_column("MB", justify="right")
    before_ns = 0
    for number, burst in enumerate(profile.bursts):
        table.add_row(
            str(number),
            _ms(burst.ready_ns),
            _ms(burst.spread_ns),
            _ms(burst.ready_ns - before_ns) if number else "",
            str(burst.tensors),
            f"{burst.size_bytes / 1e6:.2f}",
        )
        before_ns = burst.ready_ns
    return table


def _tensors(profile: Profile) -> Table:
    table = _table("Tensors, in forward order", "order", "bytes", "ready ms", "± ms", "forward ms")
    table.add_column("burst", justify="right")
    table.add_column("tensor", no_wrap=True)
    for tensor in profile.tensors:
        table.add_row(
            str(tensor.forward_order),
            str(tensor.size_bytes),
            _ms(tensor.ready_ns),
            _ms(tensor.spread_ns),
            _ms(tensor.forward_ns),
            str(tensor.burst),
            tensor.name,
        )
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _ms(time_ns: int) -> str:
    return f"{time_ns / 1e6:.2f}"


def draw_profile(profile: Profile) -> Figure:
    """When each gradient is ready, over its place in forward order: the stepwise pattern.

    A bar behind each burst spans its tensors at its ready time; error bars are spreads.
    """
    figure = Figure(figsize=(8.2, 4.6), layout="constrained")
    axes = figure.add_subplot()
    for number, burst in enumerate(profile.bursts):
        members = [tensor for tensor in profile.tensors if tensor.burst == number]
        order = [tensor.forward_order for tensor in members]
        colour = _COLOURS[number % 2]
        axes.plot(
            [min(order) - 0.5, max(order) + 0.5],
            [burst.ready_ns / 1e6] * 2,
            color=colour,
            alpha=0.35,
            linewidth=5,
            solid_capstyle="butt",
        )
        axes.errorbar(
            order,
            [tensor.ready_ns / 1e6 for tensor in members],
            yerr=[tensor.spread_ns / 1e6 for tensor in members],
            color=colour,
            fmt="o",
            markersize=3,
            elinewidth=0.8,
        )
    axes.set_xlabel("gradient, in forward order")
    axes.set_ylabel("ready, ms after the first")
    axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
    axes.set_title(
        f"{len(profile.tensors)} gradients in {len(profile.bursts)} bursts, "
        f"{profile.size_bytes / 1e6:.1f} MB; medians of {profile.iterations} iterations of rank "
        f"{profile.rank}\nbackward {profile.backward_ns / 1e6:.0f} ms, forward "
        f"{profile.forward_ns / 1e6:.0f} ms",
        loc="left",
        fontsize="medium",
    )
    axes.grid(axis="y", color="#dddddd", linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    return figure
