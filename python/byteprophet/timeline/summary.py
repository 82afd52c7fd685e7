"""Summarises a table of events in a few numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from byteprophet.timeline.events import Events
from byteprophet.timeline.tables import Kind


def summary(table: Events) -> dict[str, Any]:
    """The summary as plain data.

    ``begin_ns`` and ``end_ns`` are on the role's own clock; both are 0 without rows.
    ``iterations`` counts the iterations (or rounds) that have rows. ``size_bytes`` is the sum of
    all moved bytes. ``kinds`` counts spans and messages by kind.
    """
    rows = table.rows
    times = [rows[name] for name in table.table.times]
    known = np.concatenate([column[column != 0] for column in times])
    counted = next((c for c in ("iteration", "round") if c in table.table.columns), None)
    iterations = rows[counted] if counted else np.zeros(0, np.uint32)
    kinds: dict[str, int] = {}
    moved = rows
    if "kind" in table.table.columns:
        numbers, counts = np.unique(rows["kind"], return_counts=True)
        names = [Kind(number).name.lower() for number in numbers.tolist()]
        kinds = dict(zip(names, counts.tolist(), strict=True))
        moved = rows[rows["kind"] != Kind.BACKWARD]  # its size is that of its gradients
    return {
        "table": table.table.name,
        "role": table.origin.role,
        "rank": table.origin.rank,
        "machine": table.origin.machine,
        "rows": len(rows),
        "lost": table.lost,
        "whole": table.whole,
        "begin_ns": int(known.min()) if len(known) else 0,
        "end_ns": int(known.max()) if len(known) else 0,
        "iterations": len(np.unique(iterations[iterations > 0])),
        "size_bytes": int(moved["size_bytes"].sum()),
        "kinds": kinds,
    }
