"""Splits the time of each worker's iterations into parts that sum to the iteration exactly.

    forward, backward, update, computation   the thread computed (``computing.py``)
    communication   it waited for gradients that were queued, on links, or at a server
    others          it waited after its own push had arrived, for another worker's push
    other           the script's own time, and the time that threads take to wake up

An update that runs beside computation costs nothing and is not counted. An update that a wait is
for is counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from byteprophet.diagnose.computing import CALLED, Stretches, computing, overlapping, updating
from byteprophet.diagnose.gates import Gate, Gates
from byteprophet.diagnose.recorded import Ints, Recorded, Worker
from byteprophet.timeline.tables import Kind

PARTS = ("forward", "backward", "update", "computation", "communication", "others", "other")


@dataclass(frozen=True)
class Breakdown:
    """Shapes: W workers, I iterations, P of ``PARTS``.

    ``parts_ns`` (W, I, P). ``blamed_ns`` (W, W): the ``others`` time of each worker (first axis),
    by the worker it waited for (second axis). ``waits_ns``: waiting time of the thread per
    iteration, (W, I), by the name of the wait or collective (a tensor or another name).
    """

    parts_ns: Ints
    blamed_ns: Ints
    waits_ns: dict[str, Ints]


def breakdown(run: Recorded) -> Breakdown:
    """The breakdown of all measured iterations."""
    gates = Gates(run)
    shape = (len(run.workers), len(run.iterations))
    found = Breakdown(
        parts_ns=np.zeros((*shape, len(PARTS)), np.int64),
        blamed_ns=np.zeros((len(run.workers),) * 2, np.int64),
        waits_ns={},
    )
    for worker, own in enumerate(run.workers):
        thread, updates = computing(own), updating(own)
        called = np.isin(thread.kind, [int(kind) for kind in CALLED])
        for kind, part in CALLED.items():
            found.parts_ns[worker, :, PARTS.index(part)] += _inside_ns(
                own, thread, np.flatnonzero(thread.kind == kind)
            )
        first = max(0, thread.at(int(own.starts_ns[0]) + 1))
        for stretch in (first + np.flatnonzero(~called[first:])).tolist():
            _add(run, gates, worker, thread, updates, stretch, found)
    return found


def _inside_ns(own: Worker, thread: Stretches, which: Ints) -> Ints:
    """Time in each iteration, (I,), covered by the stretches with the indices ``which``."""
    begins_ns, ends_ns = thread.begin_ns[which], thread.end_ns[which]
    until_ns = np.append(0, np.cumsum(ends_ns - begins_ns))

    def before_ns(times_ns: Ints) -> Ints:
        place = np.searchsorted(begins_ns, times_ns, "left")
        # All stretches that began before, less the remainder of the last one.
        left_ns = np.maximum(0, np.append(0, ends_ns)[place] - times_ns)
        taken_ns: Ints = until_ns[place] - left_ns
        return taken_ns

    return before_ns(own.ends_ns) - before_ns(own.starts_ns)


def _add(
    run: Recorded,
    gates: Gates,
    worker: int,
    thread: Stretches,
    updates: Stretches,
    stretch: int,
    found: Breakdown,
) -> None:
    """Add one wait or collective to each iteration that it overlaps."""
    own = run.workers[worker]
    kind, row = int(thread.kind[stretch]), int(thread.row[stretch])
    whole = int(thread.begin_ns[stretch]), int(thread.end_ns[stretch])
    name = own.names.get(int(own.spans["name"][row]), "")
    if kind == Kind.COLLECTIVE:
        gate: Gate | None = gates.of_collective(worker, row)
    else:
        gate = gates.of_wait(worker, name, whole[1])
    reached = overlapping(own.starts_ns, own.ends_ns, *whole)
    for iteration in range(reached.start, reached.stop):
        begin_ns = max(int(own.starts_ns[iteration]), whole[0])
        end_ns = min(int(own.ends_ns[iteration]), whole[1])
        parts_ns = found.parts_ns[worker, iteration]
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
