"""Which worker comes last, how often, and by how much.

Workers meet where one of them has to wait for all others: at a server that sums their pushes, in a
collective, or, if neither was recorded, at a gradient that each of them must have ready. The last
worker keeps the others waiting for the time since the last but one came. A single worker is never
last.

Coming last costs nothing if nobody waited meanwhile. Its actual cost is in the breakdown
(``blamed_ns``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from byteprophet.diagnose.gates import Collectives
from byteprophet.diagnose.recorded import Ints, Recorded
from byteprophet.order_statistics import quantile

AT_SERVERS = "pushes at servers"
IN_COLLECTIVES = "collectives"
READY = "ready gradients"


@dataclass(frozen=True)
class Stragglers:
    """``source``: where workers met, "" if nothing was recorded. ``meetings``: how often.

    ``last`` (W,): how often each worker came last. ``behind_ns``, ``p90_ns`` (W,): median and 90th
    percentile of the delay when it did.
    """

    source: str
    meetings: int
    last: Ints
    behind_ns: Ints
    p90_ns: Ints


def stragglers(run: Recorded) -> Stragglers:
    """The stragglers at all meetings in the measured iterations."""
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
    """The number of the meeting, the worker and the time, for each push."""
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
    """One number per row, the same for rows that are equal in all columns."""
    _, numbers = np.unique(np.stack(columns), axis=1, return_inverse=True)
    flat: Ints = numbers.reshape(-1).astype(np.int64)
    return flat


def _who_was_last(numbers: Ints, workers: Ints, times_ns: Ints, count: int) -> tuple[Ints, Ints]:
    """For each meeting of all ``count`` workers: the last worker, and its delay."""
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
        behind_ns=np.array([_quantile(found, 0.5) for found in per_worker], np.int64),
        p90_ns=np.array([_quantile(found, 0.9) for found in per_worker], np.int64),
    )


def _quantile(values: Ints, share: float) -> int:
    return int(quantile(values, share)) if len(values) else 0
