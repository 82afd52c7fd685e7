"""A table of the differences between the clocks of a job's machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table


def clocks_table(clocks: Mapping[str, Any]) -> Table:
    """One line per machine as ``byteprophet timeline --json`` has them under ``clocks``."""
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("clock of", "ms ahead", "ppm fast", "true within, µs"):
        table.add_column(name, justify="left" if name == "clock of" else "right")
    for machine in clocks["machines"]:
        roles = ", ".join(machine["roles"])
        if machine["machine"] == clocks["reference"]:
            table.add_row(roles, "reference", "", "")
        elif machine["wall_ns"] is None:
            table.add_row(roles, "not aligned", "", "")
        else:
            table.add_row(
                roles,
                f"{machine['wall_ns'] / 1e6:.3f}",
                f"{machine['drift_ppm']:.2f}",
                _interval(machine["interval_ns"]),
            )
    return table


def _interval(interval_ns: Sequence[int | None]) -> str:
    low, high = ("?" if end is None else f"{end / 1e3:+.0f}" for end in interval_ns)
    return f"{low} to {high}"
