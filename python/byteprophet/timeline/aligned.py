"""Puts recorded events of several machines on the clock of one of them.

The reference is the machine of the server with the lowest rank, because every worker talks to it.
If no events connect a server with other machines, it is the first machine. If all roles are on one
machine, or no machine is known, the events stay as they are. Roles that no events connect with the
reference, and roles on an unknown machine, are aligned by their wall clocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from byteprophet.timeline.clocks import Times, on_one_clock, wall_clock
from byteprophet.timeline.events import Events, Origin
from byteprophet.timeline.tables import SERVED_TABLE

if TYPE_CHECKING:  # importing these takes a moment, and jobs on one machine do not need them
    from byteprophet.timeline.alignment_evidence import Evidence
    from byteprophet.timeline.alignment_result import Alignment


@dataclass(frozen=True)
class Machine:
    """Roles that share a clock. ``wall_ns``: how far the wall clock is ahead of that clock."""

    name: str
    roles: tuple[str, ...]
    wall_ns: int

    def __str__(self) -> str:
        more = len(self.roles) - 3
        return ", ".join(self.roles[:3]) + (f" and {more} more" if more > 0 else "")


@dataclass(frozen=True)
class Aligned:
    """``events`` on one clock, and the alignment that brought them there.

    With one machine, ``events`` are unchanged. With several, all of them are on the reference's
    clock and name its machine as their origin, if they named one, so aligning them again changes
    nothing.
    ``alignment`` is None if there is only one machine or if no events connect two machines.
    """

    events: list[Events]
    machines: tuple[Machine, ...]
    alignment: Alignment | None

    @property
    def apart(self) -> tuple[Machine, ...]:
        """The machines that were aligned by their wall clocks only; empty for one machine."""
        if len(self.machines) < 2:
            return ()
        known = self.alignment.clocks if self.alignment else {}
        return tuple(machine for machine in self.machines if machine.name not in known)


def align_events(events: Sequence[Events]) -> Aligned:
    """Returns all ``events`` with their times and origins on one clock."""
    machines = _machines(events)
    has_unknown = any(not table.origin.machine for table in events)
    if len(machines) + has_unknown < 2:
        return Aligned(list(events), machines, None)
    from byteprophet.timeline.causes import evidence_of

    evidence = evidence_of(events)
    reference = _reference(events, evidence) or machines[0].name
    connected = _connected(reference, evidence)
    alignment = None
    if len(connected) > 1:
        from byteprophet.timeline.alignment import align

        usable = [each for each in evidence if each.cause_machine in connected]
        alignment = align(connected, usable)
    return Aligned(_on_reference(events, reference, alignment), machines, alignment)


def _machines(events: Sequence[Events]) -> tuple[Machine, ...]:
    """The known machines, in the order of their first table in ``events``."""
    roles: dict[str, dict[str, None]] = {}
    wall_ns: dict[str, int] = {}
    for table in events:
        origin = table.origin
        if origin.machine:
            roles.setdefault(origin.machine, {})[origin.role] = None
            wall_ns.setdefault(origin.machine, origin.unix_ns - origin.monotonic_ns)
    return tuple(Machine(name, tuple(sorted(of)), wall_ns[name]) for name, of in roles.items())


def _reference(events: Sequence[Events], evidence: Sequence[Evidence]) -> str | None:
    """The machine of the lowest-ranked server for which there is evidence; None without one."""
    seen = {name for each in evidence for name in (each.cause_machine, each.effect_machine)}
    servers = [
        (table.origin.rank, table.origin.machine)
        for table in events
        if table.table is SERVED_TABLE and table.origin.machine in seen
    ]
    return min(servers)[1] if servers else None


def _connected(reference: str, evidence: Sequence[Evidence]) -> list[str]:
    """The reference and all machines that evidence connects with it, directly or indirectly."""
    found = [reference]
    for name in found:  # the list grows during the loop
        for each in evidence:
            pair = (each.cause_machine, each.effect_machine)
            if name in pair:
                found += [other for other in pair if other not in found]
    return found


def _on_reference(
    events: Sequence[Events], reference: str, alignment: Alignment | None
) -> list[Events]:
    """Moves ``events`` to the reference's clock, by wall clocks where there is no alignment."""
    wall = wall_clock(events)
    home = next(t.origin for t in events if t.origin.machine == reference)
    ahead_ns = int(wall(home, np.zeros(1, np.int64))[0])

    def clock(origin: Origin, times_ns: Times) -> Times:
        if alignment and origin.machine in alignment.clocks:
            return alignment.to_reference(origin.machine, times_ns)
        return wall(origin, times_ns) - ahead_ns

    def moved(origin: Origin) -> Origin:
        now_ns = int(clock(origin, np.array([origin.monotonic_ns]))[0])
        machine = origin.machine and reference
        return replace(origin, machine=machine, monotonic_ns=now_ns, unix_ns=now_ns + ahead_ns)

    return [replace(table, origin=moved(table.origin)) for table in on_one_clock(events, clock)]
