"""Where the time of each iteration went, worker by worker; the parts sum to the iteration exactly.

    forward, backward, update, computation   the thread computed (``computing.py``)
    communication   it waited for gradients that were queued, on links, or at a server
    others          it waited, and its own part had arrived: another worker's had not yet
    other           the script's own time, and threads that wake up

An update that runs beside computation costs nothing and is not counted; one that a wait is for is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from byteprophet.diagnose.computing import CALLED, Stretches, computing, overlapping, updating
from byteprophet.diagnose.gates import Gate, Gates
from byteprophet.diagnose.recorded import Ints, Recorded
from byteprophet.timeline.tables import Kind

PARTS = ("forward", "backward", "update", "computation", "communication", "others", "other")


@dataclass(frozen=True)
class Breakdown:
    """Shapes: W workers, I iterations, P of ``PARTS``.

    ``parts_ns`` (W, I, P). ``blamed_ns`` (W, W): how much of its ``others`` each worker (first
    axis) waited for which. ``waits_ns``: by tensor or other name that a wait or collective has,
    what the thread waited for it per iteration, (W, I).
    """

    parts_ns: Ints
    blamed_ns: Ints
    waits_ns: dict[str, Ints]


def breakdown(run: Recorded) -> Breakdown:
    """Of all iterations that count."""
    gates = Gates(run)
    shape = (len(run.workers), len(run.iterations))
    found = Breakdown(
        parts_ns=np.zeros((*shape, len(PARTS)), np.int64),
        blamed_ns=np.zeros((len(run.workers),) * 2, np.int64),
        waits_ns={},
    )
    for worker, own in enumerate(run.workers):
        thread, updates = computing(own), updating(own)
        first = max(0, thread.at(int(own.starts_ns[0]) + 1))
        for stretch in range(first, len(thread.row)):
            _add(run, gates, worker, thread, updates, stretch, found)
    return found


def _add(
    run: Recorded,
    gates: Gates,
    worker: int,
    thread: Stretches,
    updates: Stretches,
    stretch: int,
    found: Breakdown,
) -> None:
    """One stretch, to each iteration that it reaches into."""
    own = run.workers[worker]
    kind, row = int(thread.kind[stretch]), int(thread.row[stretch])
    whole = int(thread.begin_ns[stretch]), int(thread.end_ns[stretch])
    gate, name = None, ""
    if kind in (Kind.WAIT, Kind.COLLECTIVE):
        name = own.names.get(int(own.spans["name"][row]), "")
        if kind == Kind.COLLECTIVE:
            gate = gates.of_collective(worker, row)
        else:
            gate = gates.of_wait(worker, name, whole[1])
    reached = overlapping(own.starts_ns, own.ends_ns, *whole)
    for iteration in range(reached.start, reached.stop):
        begin_ns = max(int(own.starts_ns[iteration]), whole[0])
        end_ns = min(int(own.ends_ns[iteration]), whole[1])
        parts_ns = found.parts_ns[worker, iteration]
        if kind in CALLED:
            parts_ns[PARTS.index(CALLED[kind])] += end_ns - begin_ns
            continue
        split_ns = split(gate, updates, begin_ns, end_ns)
        for part, time_ns in split_ns.items():
            parts_ns[PARTS.index(part)] += time_ns
        if gate is not None and 0 <= gate.late < len(run.workers):
            found.blamed_ns[worker, gate.late] += split_ns["others"]
        if name not in found.waits_ns:
            found.waits_ns[name] = np.zeros(found.parts_ns.shape[:2], np.int64)
        found.waits_ns[name][worker, iteration] += end_ns - begin_ns


def split(gate: Gate | None, updates: Stretches, begin_ns: int, end_ns: int) -> dict[str, int]:
    """The parts of a wait, from ``begin_ns`` to ``end_ns``, that ``gate`` ended."""
    if gate is None:
        return {"communication": end_ns - begin_ns, "others": 0, "update": 0, "other": 0}
    there_ns = min(max(gate.there_ns, begin_ns), end_ns)
    others_ns = max(0, min(gate.last_ns, there_ns) - max(gate.own_ns, begin_ns))
    updated_ns = updates.covered_ns(there_ns, end_ns)
    return {
        "communication": there_ns - begin_ns - others_ns,
        "others": others_ns,
        "update": updated_ns,
        "other": end_ns - there_ns - updated_ns,
    }
