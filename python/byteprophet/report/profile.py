"""A profile as tables on the terminal; ``profile_plot.py`` draws it."""

from __future__ import annotations

from rich import box
from rich.console import Group
from rich.table import Table

from byteprophet.profile import Profile


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
