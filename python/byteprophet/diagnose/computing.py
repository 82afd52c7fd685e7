"""What the training thread did at any time: exactly one thing, without gaps or overlaps.

Recorded spans do overlap: a wait is nested in a layer, an update runs beside a backward pass, and
collectives run behind both. At any time, the first active kind of this list counts:

    wait, forward, backward, update, other computation, collective, send, receive

Among active spans of the same kind, the one that began last counts, because it is the inner one.
Waits of other threads, as of one that writes checkpoints, do not count.
Time without any span forms a stretch with row -1: the script's own time. So the stretches of an
iteration sum to the iteration, and communication counts only while nothing is computed.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np

from byteprophet.diagnose.recorded import Ints, Worker
from byteprophet.measure.waits import in_training
from byteprophet.order_statistics import distinct
from byteprophet.timeline.tables import Kind, Rows

NOTHING = -1

COMPUTED: Mapping[int, str] = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.UPDATE: "update",
    Kind.COMPUTE: "computation",
}
"""Names of the kinds of computation in the breakdown and on the critical path."""

CALLED: Mapping[int, str] = {
    **COMPUTED,
    Kind.SEND: "communication",
    Kind.RECEIVE: "communication",
    NOTHING: "other",
}
"""These and all other kinds without a recorded cause, which need no further analysis."""

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
    """Consecutive stretches of time, shape (n,) each: a ``begin_ns`` is the ``end_ns`` before it.

    ``row``: the row of the span that covers the stretch, or -1; ``kind``: its kind, or ``NOTHING``.
    """

    begin_ns: Ints
    end_ns: Ints
    row: Ints
    kind: Ints

    def at(self, time_ns: int) -> int:
        """Index of the stretch just before ``time_ns``; -1 if ``time_ns`` is before all of them."""
        begins_ns, ends_ns = self._edges_ns
        index = bisect_left(begins_ns, time_ns) - 1
        return index if index >= 0 and time_ns <= ends_ns[index] else -1

    @cached_property
    def _edges_ns(self) -> tuple[Sequence[int], Sequence[int]]:
        """Begins and ends as lists, in which a single search is much faster than in arrays."""
        return self.begin_ns.tolist(), self.end_ns.tolist()

    def covered_ns(self, begin_ns: int, end_ns: int) -> int:
        """How much of the interval is covered by spans."""
        touched = overlapping(self.begin_ns, self.end_ns, begin_ns, end_ns)
        since_ns = np.maximum(self.begin_ns[touched], begin_ns)
        until_ns = np.minimum(self.end_ns[touched], end_ns)
        return int((until_ns - since_ns)[self.row[touched] >= 0].sum())


def overlapping(begins_ns: Ints, ends_ns: Ints, begin_ns: int, end_ns: int) -> slice:
    """Which of the disjoint, ordered intervals overlap the one from ``begin_ns`` to ``end_ns``."""
    first = int(np.searchsorted(ends_ns, begin_ns, "right"))
    return slice(first, max(first, int(np.searchsorted(begins_ns, end_ns, "left"))))


def computing(worker: Worker) -> Stretches:
    """The stretches of a worker, over all its recorded iterations."""
    return _kept(worker, _ORDER)


def updating(worker: Worker) -> Stretches:
    """The stretches of the worker's updates alone, over the same time."""
    return _kept(worker, (Kind.UPDATE,))


_found: WeakKeyDictionary[Worker, dict[tuple[Kind, ...], Stretches]] = WeakKeyDictionary()
"""Kept as long as the worker, because every part of a diagnosis needs the same stretches."""


def _kept(worker: Worker, order: tuple[Kind, ...]) -> Stretches:
    known = _found.setdefault(worker, {})
    if order not in known:
        known[order] = stretches(worker.spans, order, *_known_ns(worker))
    return known[order]


def _known_ns(worker: Worker) -> tuple[int, int]:
    known = worker.spans[worker.spans["kind"] == Kind.ITERATION]
    first_ns = min([int(worker.starts_ns[0]), *known["begin_ns"].tolist()])
    return first_ns, max([int(worker.ends_ns[-1]), *known["end_ns"].tolist()])


def stretches(spans: Rows, order: Sequence[Kind], begin_ns: int, end_ns: int) -> Stretches:
    """Stretches of ``spans`` from ``begin_ns`` to ``end_ns``; ``order``: kinds by priority."""
    places = np.full(len(Kind), len(order), np.int64)
    places[list(order)] = np.arange(len(order))
    place = places[spans["kind"]]
    place[(spans["kind"] == Kind.WAIT) & ~in_training(spans)] = len(order)
    begins_ns = np.maximum(spans["begin_ns"], begin_ns)
    ends_ns = np.minimum(spans["end_ns"], end_ns)
    wanted = np.flatnonzero((place < len(order)) & (begins_ns < ends_ns))
    wanted = wanted[np.argsort(begins_ns[wanted], kind="stable")]
    cuts_ns = distinct(np.concatenate([[begin_ns, end_ns], begins_ns[wanted], ends_ns[wanted]]))
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
    """Join neighbouring stretches of the same row."""
    first = np.flatnonzero(np.append(True, np.diff(rows) != 0)[: len(rows)])
    row = rows[first]
    kinds = np.append(spans["kind"].astype(np.int64), NOTHING)
    return Stretches(cuts_ns[first], cuts_ns[np.append(first[1:], len(rows))], row, kinds[row])
