"""Which worker is last, how often, and by how much.

Workers meet where one of them has to wait for all: at a server that adds up their pushes, in a
collective, or, if neither was recorded, in the gradient that each of them has ready. Who is last
keeps the others by the time since the one before it came; with fewer than two there is no last.

A worker that is last need not cost anything, if nobody waited meanwhile: what it did cost is in the
breakdown (``blamed_ns``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from byteprophet.diagnose.gates import Collectives
from byteprophet.diagnose.recorded import Ints, Recorded

AT_SERVERS = "pushes at servers"
IN_COLLECTIVES = "collectives"
READY = "ready gradients"


@dataclass(frozen=True)
class Stragglers:
    """``source``: what workers met in, "" if nothing was recorded; ``meetings``: how many.

    ``last`` (W,): how often each worker was last. ``behind_ns``: by how much, then: the median and
    ``p90_ns`` the 90th percentile, (W,).
    """

    source: str
    meetings: int
    last: Ints
    behind_ns: Ints
    p90_ns: Ints


def stragglers(run: Recorded) -> Stragglers:
    """Of all meetings in the iterations that count."""
    for source, meetings in (
        (AT_SERVERS, _at_servers(run)),
        (IN_COLLECTIVES, _in_collectives(run)),
        (READY, _ready(run)),
    ):
        found = _who_was_last(*meetings, len(run.workers))
        if found[0].size:
            return _summed_up(source, *found, len(run.workers))
    return _summed_up("", np.zeros(0, np.int64), np.zeros(0, np.int64), len(run.workers))


def _at_servers(run: Recorded) -> tuple[Ints, Ints, Ints]:
    """Per push that meeting's number, the worker, the time."""
    begin_ns, end_ns = run.window_ns
    rows, servers = run.served, run.server
    inside = (rows["arrived_ns"] >= begin_ns) & (rows["arrived_ns"] < end_ns)
    rows, servers = rows[inside], servers[inside]
    columns = [servers, rows["key"].astype(np.int64), rows["round"].astype(np.int64)]
    return _numbered(columns), rows["worker"].astype(np.int64), rows["arrived_ns"]


def _in_collectives(run: Recorded) -> tuple[Ints, Ints, Ints]:
    begin_ns, end_ns = run.window_ns
    found = [
        (number, worker, time_ns)
        for number, begins in enumerate(Collectives(run.workers).meetings().values())
        for time_ns, worker in begins
        if begin_ns <= time_ns < end_ns
    ]
    numbers, workers, times_ns = np.array(found, np.int64).reshape(-1, 3).T
    return numbers, workers, times_ns


def _ready(run: Recorded) -> tuple[Ints, Ints, Ints]:
    tables = [
        worker.transfers[np.isin(worker.transfers["iteration"], run.iterations)]
        for worker in run.workers
    ]
    workers = np.repeat(np.arange(len(tables)), [len(rows) for rows in tables])
    rows = np.concatenate(tables)
    known = rows["ready_ns"] > 0
    columns = [rows["key"].astype(np.int64), rows["iteration"].astype(np.int64)]
    return _numbered(columns)[known], workers[known], rows["ready_ns"][known]


def _numbered(columns: list[Ints]) -> Ints:
    """A number per row, equal where all columns are."""
    _, numbers = np.unique(np.stack(columns), axis=1, return_inverse=True)
    flat: Ints = numbers.reshape(-1).astype(np.int64)
    return flat


def _who_was_last(numbers: Ints, workers: Ints, times_ns: Ints, count: int) -> tuple[Ints, Ints]:
    """Per meeting to which all ``count`` workers came: who was last, and by how much."""
    order = np.lexsort((workers, times_ns, numbers))
    numbers, workers, times_ns = numbers[order], workers[order], times_ns[order]
    ends = np.flatnonzero(np.append(np.diff(numbers) != 0, True)[: len(numbers)])
    sizes = np.diff(ends, prepend=-1)
    ends = ends[(sizes == count) & (sizes > 1)]
    return workers[ends], times_ns[ends] - times_ns[ends - 1]


def _summed_up(source: str, last: Ints, behind_ns: Ints, count: int) -> Stragglers:
    per_worker = [behind_ns[last == worker] for worker in range(count)]
    return Stragglers(
        source=source,
        meetings=len(last),
        last=np.array([len(found) for found in per_worker], np.int64),
        behind_ns=np.array([_percentile(found, 50) for found in per_worker], np.int64),
        p90_ns=np.array([_percentile(found, 90) for found in per_worker], np.int64),
    )


def _percentile(values: Ints, percent: float) -> int:
    return int(np.percentile(values, percent)) if len(values) else 0
