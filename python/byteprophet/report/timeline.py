"""Prints the contents of a timeline, per role and table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table


def timeline_table(sources: Sequence[dict[str, Any]]) -> Table:
    """One line per table of events, as ``byteprophet timeline --json`` has them."""
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("role", "table"):
        table.add_column(name)
    for name in ("rows", "seconds", "iterations", "MB"):
        table.add_column(name, justify="right")
    table.add_column("")
    for source in sources:
        notes = [f"{count} {kind}" for kind, count in source["kinds"].items()]
        if source["lost"]:
            notes.append(f"{source['lost']} rows lost")
        if not source["whole"]:
            notes.append("cut off")
        length_ns = source["end_ns"] - source["begin_ns"]
        table.add_row(
            source["role"],
            source["table"],
            str(source["rows"]),
            f"{length_ns / 1e9:.3f}",
            str(source["iterations"]),
            f"{source['size_bytes'] / 1e6:.1f}",
            ", ".join(notes),
        )
    return table
