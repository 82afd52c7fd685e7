"""The picture of a profile: the paper's Figure 4."""

from __future__ import annotations

from matplotlib.figure import Figure

from byteprophet.profile import Profile

_COLOURS = ("#0072B2", "#E69F00")  # Okabe and Ito's; neighbours differ


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
