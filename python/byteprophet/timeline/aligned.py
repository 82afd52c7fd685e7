"""Recorded events of several machines, brought onto the clock of one of them.

That one, the reference, is the machine of the server of the lowest rank: every worker talks to it.
Where all roles are on one machine nothing is done, and costs nothing. Roles that no transfers
connect with the reference, and those of no known machine, are as far off as their wall clocks are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from byteprophet.timeline.alignment_evidence import Evidence
from byteprophet.timeline.causes import evidence_of
from byteprophet.timeline.clocks import Times, on_one_clock, wall_clock
from byteprophet.timeline.events import Events, Origin
from byteprophet.timeline.tables import SERVED_TABLE

if TYPE_CHECKING:  # its solver takes a moment to import, and is not needed on one machine
    from byteprophet.timeline.alignment_result import Alignment


@dataclass(frozen=True)
class Machine:
    """Who shares a clock. ``wall_ns``: how far the wall clock is ahead of that clock."""

    name: str
    roles: tuple[str, ...]
    wall_ns: int

    def __str__(self) -> str:
        more = len(self.roles) - 3
        return ", ".join(self.roles[:3]) + (f" and {more} more" if more > 0 else "")


@dataclass(frozen=True)
class Aligned:
    """``events`` on one clock, and how they came there.

    ``alignment`` is None if nothing was aligned: there is one machine, or no transfers connect any
    two. Then ``events`` are as they were. Else they are all on the reference's clock and say that
    they are of its machine: aligned again, they stay as they are.
    """

    events: list[Events]
    machines: tuple[Machine, ...]
    alignment: Alignment | None

    @property
    def apart(self) -> tuple[Machine, ...]:
        """Machines of which only the wall clock is known, where there are several."""
        if len(self.machines) < 2:
            return ()
        known = self.alignment.clocks if self.alignment else {}
        return tuple(machine for machine in self.machines if machine.name not in known)


def align_events(events: Sequence[Events]) -> Aligned:
    """All ``events`` on one clock: times of every table, and what their origins say."""
    machines = _machines(events)
    evidence = evidence_of(events) if len(machines) > 1 else []
    connected = _connected(events, evidence)
    if len(connected) < 2:
        return Aligned(list(events), machines, None)
    from byteprophet.timeline.alignment import align

    usable = [each for each in evidence if each.cause_machine in connected]
    alignment = align(connected, usable)
    return Aligned(_on_reference(events, alignment), machines, alignment)


def _machines(events: Sequence[Events]) -> tuple[Machine, ...]:
    """In the order in which they come in ``events``."""
    roles: dict[str, dict[str, None]] = {}
    wall_ns: dict[str, int] = {}
    for table in events:
        origin = table.origin
        if origin.machine:
            roles.setdefault(origin.machine, {})[origin.role] = None
            wall_ns.setdefault(origin.machine, origin.unix_ns - origin.monotonic_ns)
    return tuple(Machine(name, tuple(sorted(of)), wall_ns[name]) for name, of in roles.items())


def _connected(events: Sequence[Events], evidence: Sequence[Evidence]) -> list[str]:
    """The reference, and all machines that evidence connects with it; [] without evidence."""
    seen = {name for each in evidence for name in (each.cause_machine, each.effect_machine)}
    servers = [
        (table.origin.rank, table.origin.machine)
        for table in events
        if table.table is SERVED_TABLE and table.origin.machine in seen
    ]
    if not servers:
        return []
    found = [min(servers)[1]]
    for name in found:  # grows meanwhile
        for each in evidence:
            pair = (each.cause_machine, each.effect_machine)
            if name in pair:
                found += [other for other in pair if other not in found]
    return found


def _on_reference(events: Sequence[Events], alignment: Alignment) -> list[Events]:
    """Whoever was not aligned comes there by the wall clocks."""
    wall = wall_clock(events)
    home = next(t.origin for t in events if t.origin.machine == alignment.reference)
    ahead_ns = int(wall(home, np.zeros(1, np.int64))[0])

    def clock(origin: Origin, times_ns: Times) -> Times:
        if origin.machine in alignment.clocks:
            return alignment.to_reference(origin.machine, times_ns)
        return wall(origin, times_ns) - ahead_ns

    def moved(origin: Origin) -> Origin:
        now_ns = int(clock(origin, np.array([origin.monotonic_ns]))[0])
        machine = origin.machine and alignment.reference
        return replace(origin, machine=machine, monotonic_ns=now_ns, unix_ns=now_ns + ahead_ns)

    return [replace(table, origin=moved(table.origin)) for table in on_one_clock(events, clock)]
