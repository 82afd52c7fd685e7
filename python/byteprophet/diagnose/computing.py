"""What the thread that computes did at any time: one thing, without gaps and overlaps.

Spans overlap: a wait is nested in a layer, an update runs beside a backward pass, a collective
behind both. At any time the first of these counts that is there,

    wait, forward, backward, update, other computation, collective, send, receive

and of one kind the span that began last, which is the inner one. What none covers is a stretch of
row -1: the script's own time. So the stretches of an iteration sum to it, and communication
counts only where nothing was computed meanwhile.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from byteprophet.diagnose.recorded import Ints, Worker
from byteprophet.timeline.tables import Kind, Rows

NOTHING = -1

COMPUTED: Mapping[int, str] = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.UPDATE: "update",
    Kind.COMPUTE: "computation",
}
"""How breakdown and critical path call the kinds of computation."""

CALLED: Mapping[int, str] = {
    **COMPUTED,
    Kind.SEND: "communication",
    Kind.RECEIVE: "communication",
    NOTHING: "other",
}
"""The same of all kinds that need no looking into: what they waited for was not recorded."""

_ORDER = (
    Kind.WAIT,
    Kind.FORWARD,
    Kind.BACKWARD,
    Kind.UPDATE,
    Kind.COMPUTE,
    Kind.COLLECTIVE,
    Kind.SEND,
    Kind.RECEIVE,
)


@dataclass(frozen=True)
class Stretches:
    """Shape (n,) each: ``begin_ns`` is the ``end_ns`` before.

    ``row``: of the spans that these are of, or -1; ``kind``: its, or ``NOTHING``.
    """

    begin_ns: Ints
    end_ns: Ints
    row: Ints
    kind: Ints

    def at(self, time_ns: int) -> int:
        """Which stretch is there just before ``time_ns``; -1: before all of them."""
        index = int(np.searchsorted(self.begin_ns, time_ns, "left")) - 1
        return index if index >= 0 and time_ns <= self.end_ns[index] else -1

    def covered_ns(self, begin_ns: int, end_ns: int) -> int:
        """How much of an interval spans cover."""
        touched = overlapping(self.begin_ns, self.end_ns, begin_ns, end_ns)
        since_ns = np.maximum(self.begin_ns[touched], begin_ns)
        until_ns = np.minimum(self.end_ns[touched], end_ns)
        return int((until_ns - since_ns)[self.row[touched] >= 0].sum())


def overlapping(begins_ns: Ints, ends_ns: Ints, begin_ns: int, end_ns: int) -> slice:
    """Which of the intervals, that follow one another, reach into one from begin to end."""
    first = int(np.searchsorted(ends_ns, begin_ns, "right"))
    return slice(first, max(first, int(np.searchsorted(begins_ns, end_ns, "left"))))


def computing(worker: Worker) -> Stretches:
    """Of a worker, over all that it recorded of iterations."""
    return stretches(worker.spans, _ORDER, *_known_ns(worker))


def updating(worker: Worker) -> Stretches:
    """Of the worker's updates alone, over the same time."""
    return stretches(worker.spans, (Kind.UPDATE,), *_known_ns(worker))


def _known_ns(worker: Worker) -> tuple[int, int]:
    known = worker.spans[worker.spans["kind"] == Kind.ITERATION]
    first_ns = min([int(worker.starts_ns[0]), *known["begin_ns"].tolist()])
    return first_ns, max([int(worker.ends_ns[-1]), *known["end_ns"].tolist()])


def stretches(spans: Rows, order: Sequence[Kind], begin_ns: int, end_ns: int) -> Stretches:
    """What of ``spans`` counts, from ``begin_ns`` to ``end_ns``; ``order``: of kinds."""
    places = np.full(len(Kind), len(order), np.int64)
    places[list(order)] = np.arange(len(order))
    place = places[spans["kind"]]
    begins_ns = np.maximum(spans["begin_ns"], begin_ns)
    ends_ns = np.minimum(spans["end_ns"], end_ns)
    wanted = np.flatnonzero((place < len(order)) & (begins_ns < ends_ns))
    wanted = wanted[np.argsort(begins_ns[wanted], kind="stable")]
    cuts_ns = np.unique(np.concatenate([[begin_ns, end_ns], begins_ns[wanted], ends_ns[wanted]]))
    waiting = list(
        zip(
            begins_ns[wanted].tolist(),
            place[wanted].tolist(),
            spans["begin_ns"][wanted].tolist(),
            ends_ns[wanted].tolist(),
            wanted.tolist(),
            strict=True,
        )
    )[::-1]
    there: list[tuple[int, int, int, int]] = []  # place, less the begin, row, end
    rows = []
    for cut_ns in cuts_ns[:-1].tolist():
        while waiting and waiting[-1][0] <= cut_ns:
            _, where, since_ns, until_ns, row = waiting.pop()
            heapq.heappush(there, (where, -since_ns, row, until_ns))
        while there and there[0][3] <= cut_ns:
            heapq.heappop(there)
        rows.append(there[0][2] if there else -1)
    return _joined(cuts_ns, np.array(rows, np.int64), spans)


def _joined(cuts_ns: Ints, rows: Ints, spans: Rows) -> Stretches:
    """Neighbours of one row as one stretch."""
    first = np.flatnonzero(np.append(True, np.diff(rows) != 0)[: len(rows)])
    row = rows[first]
    kinds = np.append(spans["kind"].astype(np.int64), NOTHING)
    return Stretches(cuts_ns[first], cuts_ns[np.append(first[1:], len(rows))], row, kinds[row])
