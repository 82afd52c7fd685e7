"""Good routings: what the formula says, and what single changes make of that.

Where links are alike, one number decides: the fraction x of all bytes that servers sum, in units
that alternate in forward order (``mixed.py``). Where they are not, owners' shares follow from x
(``shares.py``). So a dozen values of x are tried first. Their best is within a few percent of the
best that there is. Then units change sides, alone, in pairs and in runs, and owners' shares shift.
Changes are drawn by lot, in batches that are replayed at once, and the best of a batch is made if
it helps. The same seed and the same number of batches give the same routings, on any number of
cores.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from byteprophet.job import Job
from byteprophet.job.owners import Owners
from byteprophet.strategy.search.engine import RouteEngine, Routing
from byteprophet.strategy.search.units import Units
from byteprophet.strategy.shares import level_shares, owners_beside

FRACTIONS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_BATCH = 8
_FRUITLESS = 25
"""Batches without a gain after which the search ends."""
_LEAST_GAIN = 0.0002
_RUN = 8
_PARTS = 240
"""Owners' shares are shifted in parts of this sum."""
_SHIFTS = (24, 6, 2)


@dataclass(frozen=True, eq=False)
class Known:
    """A routing and its time in the engine. ``how``: where it comes from."""

    routing: Routing
    iteration_ns: int
    how: str


def formula_routings(job: Job, units: Units) -> list[tuple[str, Routing]]:
    """Routings for a dozen fractions, with the owners that fit; named."""
    worker_bps = [host.slower_bps for host in job.cluster.workers]
    server_bps = [host.slower_bps for host in job.cluster.servers]
    fractions = list(FRACTIONS) if server_bps else [0.0]
    if server_bps:
        _, of_servers = level_shares(worker_bps, server_bps)
        level = round(sum(of_servers), 4)
        if level not in fractions:
            fractions.append(level)
    found = []
    for fraction in fractions:
        owners = owners_beside(worker_bps, fraction)
        named = f"x={fraction:g}"
        found.append((named, Routing(units.alternating(fraction), owners)))
        if not owners.are_equal:
            equal = Owners.equal(len(worker_bps))
            found.append((f"{named}, equal owners", Routing(units.alternating(fraction), equal)))
    return found


def best_routings(
    engine: RouteEngine,
    job: Job,
    *,
    budget_s: float,
    seed: int,
    progress: Callable[[Known], None] = lambda known: None,
) -> list[Known]:
    """The formula's routings, and what local search made of their best, the fastest first.

    The formula's routings are replayed whatever the budget. ``progress`` is told of every gain.
    """
    end_s = time.monotonic() + budget_s
    named = formula_routings(job, engine.units)
    times_ns = engine.many([routing for _, routing in named])
    found = [
        Known(routing, time_ns, name)
        for (name, routing), time_ns in zip(named, times_ns, strict=True)
    ]
    found.sort(key=lambda known: known.iteration_ns)
    progress(found[0])
    search = _Local(engine, job, random.Random(seed))
    best = search.improved(found[0], end_s, progress)
    if best is not found[0]:
        found.insert(0, best)
    return found


class _Local:
    def __init__(self, engine: RouteEngine, job: Job, lot: random.Random) -> None:
        self._engine, self._lot = engine, lot
        self._workers, self._has_servers = job.workers, job.servers > 0

    def improved(self, start: Known, end_s: float, progress: Callable[[Known], None]) -> Known:
        """``start`` after changes that help, until none does or the time is over."""
        at, fruitless = start, 0
        while time.monotonic() < end_s and fruitless < _FRUITLESS:
            routings = [self._changed(at.routing) for _ in range(_BATCH)]
            if all(routing.key == at.routing.key for routing in routings):
                return at  # nothing can be changed
            times_ns = self._engine.many(routings)
            best = int(np.argmin(times_ns))
            fruitless += 1
            if times_ns[best] < (1 - _LEAST_GAIN) * at.iteration_ns:
                at, fruitless = Known(routings[best], times_ns[best], "local search"), 0
                progress(at)
        return at

    def _changed(self, routing: Routing) -> Routing:
        """``routing`` after one change by lot."""
        changes: Sequence[Callable[[Routing], Routing]] = (self._shifted,)
        if self._has_servers:
            changes = (self._flipped, self._swapped, self._swapped, self._run)
            if self._workers > 2:
                changes = (*changes, self._shifted)
        return self._lot.choice(changes)(routing)

    def _flipped(self, routing: Routing) -> Routing:
        return self._with(routing, [self._lot.randrange(len(routing.served))])

    def _swapped(self, routing: Routing) -> Routing:
        """One unit of each side changes to the other, the second one near the first."""
        first = self._lot.randrange(len(routing.served))
        other = np.flatnonzero(routing.served != routing.served[first])
        if not len(other):
            return self._flipped(routing)
        near = other[np.argsort(np.abs(other - first), kind="stable")][:_RUN]
        return self._with(routing, [first, int(self._lot.choice(near.tolist()))])

    def _run(self, routing: Routing) -> Routing:
        """A run of units changes to the side of its first one's opposite."""
        first = self._lot.randrange(len(routing.served))
        last = first + self._lot.randint(2, _RUN)
        served = routing.served.copy()
        served[first:last] = ~routing.served[first]
        return Routing(served, routing.owners)

    def _shifted(self, routing: Routing) -> Routing:
        """A part of what one rank owns goes to another one."""
        if self._workers < 3:
            return routing
        parts = [round(share * _PARTS) for share in map(float, routing.owners.shares)]
        giver, taker = self._lot.sample(range(self._workers), 2)
        moved = min(parts[giver], self._lot.choice(_SHIFTS))
        parts[giver] -= moved
        parts[taker] += moved
        return Routing(routing.served, Owners.of(parts, self._workers)) if moved else routing

    @staticmethod
    def _with(routing: Routing, flipped: list[int]) -> Routing:
        served = routing.served.copy()
        served[flipped] = ~served[flipped]
        return Routing(served, routing.owners)
