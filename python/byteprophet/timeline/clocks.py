"""Converts times of several roles to one clock, to show or write them together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from byteprophet.timeline.events import Events, Origin

Times = npt.NDArray[np.int64]

Clock = Callable[[Origin, Times], Times]
"""Converts times on the clock of an ``Origin`` to the common clock. Must preserve their order."""


def wall_clock(events: Sequence[Events]) -> Clock:
    """A ``Clock`` that converts to Unix time, as each machine's wall clock has it.

    All roles of a machine are shifted by the offset of its first table, so that they keep their
    distances. A role on an unknown machine is shifted by its own offset.
    """
    offsets_ns: dict[str, int] = {}

    def to_unix(origin: Origin, times_ns: Times) -> Times:
        shift_ns = origin.unix_ns - origin.monotonic_ns
        if origin.machine:
            shift_ns = offsets_ns[origin.machine]
        return times_ns + shift_ns

    for table in events:
        origin = table.origin
        offsets_ns.setdefault(origin.machine, origin.unix_ns - origin.monotonic_ns)
    return to_unix


def on_one_clock(events: Sequence[Events], clock: Clock) -> list[Events]:
    """The same events with all times on ``clock``. Unknown times stay 0."""
    moved = []
    for table in events:
        rows = table.rows.copy()
        for name in table.table.times:
            known = rows[name] != 0
            rows[name][known] = clock(table.origin, rows[name][known])
        moved.append(replace(table, rows=rows))
    return moved
