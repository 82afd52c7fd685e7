"""What ended a wait: the partition that came back last, or the collective, and what it waited for.

A wait for a gradient ends once the last of its partitions is back and its update is made. Of that
partition is known, as far as it was recorded, when this worker's push reached the server, when the
last worker's did, and when the answer was here:

    own          the push of this worker was at the server
    last         that of the last worker was: from ``own`` to ``last`` is waiting for others
    there        the answer was here: what follows is the update, or a thread that wakes up

Of a collective the same: this rank began it, the last rank did, it ended. Under ``stock`` nobody
recorded when a worker had an answer, so it is taken to be there when the wait ended.

A wait is for the tensor that it is named after, else for all; what came back last before its end
ended it. That holds whichever iteration the tensor was of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from byteprophet.diagnose.recorded import Ints, Recorded, Worker
from byteprophet.timeline.tables import Kind, Rows, tensor_of


@dataclass(frozen=True)
class Gate:
    """Times as above. ``late``: index of the worker that was last, -1: not known.

    ``transfer``: row of the worker's transfers; ``served``: of the servers', ``last_served`` that
    of the last worker; ``span``: a collective's row. -1: none.
    """

    own_ns: int
    last_ns: int
    there_ns: int
    late: int
    transfer: int = -1
    served: int = -1
    last_served: int = -1
    span: int = -1


class Gates:
    """Finds what ended the waits of a run's workers."""

    def __init__(self, run: Recorded) -> None:
        self._run = run
        self.last_served = _last_of_rounds(run.served, run.server)
        self.transfer_of = _transfers_by_served(run)
        self._collectives = Collectives(run.workers)
        self._by_worker = [_Returns(run, index) for index in range(len(run.workers))]

    def of_wait(self, worker: int, name: str, end_ns: int) -> Gate | None:
        """What ended the wait of ``worker`` for ``name`` at ``end_ns``; None: nothing recorded."""
        returns = self._by_worker[worker]
        transfer = returns.transfer(name, end_ns)
        if transfer >= 0:
            return self._of_transfer(worker, transfer)
        if (span := self._collectives.last_ended(worker, name, end_ns)) >= 0:
            return self.of_collective(worker, span)
        served = returns.served(end_ns)
        return self._with_round(served, end_ns, -1) if served >= 0 else None

    def of_collective(self, worker: int, span: int) -> Gate:
        """A collective's own."""
        row = self._run.workers[worker].spans[span]
        last_ns, late = self._collectives.last_begin(worker, span)
        return Gate(int(row["begin_ns"]), last_ns, int(row["end_ns"]), late, span=span)

    def _of_transfer(self, worker: int, transfer: int) -> Gate:
        row = self._run.workers[worker].transfers[transfer]
        there_ns = int(row["pulled_ns"])
        served = int(self._run.workers[worker].served[transfer])
        if served < 0:
            acked_ns = int(row["acked_ns"]) or there_ns
            return Gate(acked_ns, acked_ns, there_ns, worker, transfer=transfer)
        return self._with_round(served, there_ns, transfer)

    def _with_round(self, served: int, there_ns: int, transfer: int) -> Gate:
        last = int(self.last_served[served])
        rows = self._run.served
        own_ns, last_ns = int(rows[served]["arrived_ns"]), int(rows[last]["arrived_ns"])
        late = int(rows[last]["worker"])
        return Gate(own_ns, last_ns, there_ns, late, transfer, served, last)


class _Returns:
    """When a worker's partitions came back, by tensor and all together."""

    def __init__(self, run: Recorded, worker: int) -> None:
        transfers = run.workers[worker].transfers  # by pulled_ns
        pulled_ns = transfers["pulled_ns"]
        self._all = np.flatnonzero(pulled_ns > 0)
        self._all_pulled_ns = pulled_ns[self._all]
        numbers = tensor_of(transfers)[self._all]
        self._rows: dict[str, tuple[Ints, Ints]] = {}  # and when they were pulled
        for number in np.unique(numbers).tolist():
            if name := run.tensors.get(number):
                rows = self._all[numbers == number]
                self._rows[name] = rows, pulled_ns[rows]
        # ps-lite numbers workers as their ranks are sorted.
        served = np.flatnonzero((run.served["worker"] == worker) & (run.served["answered_ns"] > 0))
        self._served = served[np.argsort(run.served["answered_ns"][served], kind="stable")]
        self._answered_ns = run.served["answered_ns"][self._served]

    def transfer(self, name: str, end_ns: int) -> int:
        rows, pulled_ns = self._rows.get(name, (self._all, self._all_pulled_ns))
        place = int(np.searchsorted(pulled_ns, end_ns, "right")) - 1
        return int(rows[place]) if place >= 0 else -1

    def served(self, end_ns: int) -> int:
        place = int(np.searchsorted(self._answered_ns, end_ns, "right")) - 1
        return int(self._served[place]) if place >= 0 else -1


class Collectives:
    """The collectives of all ranks; the n-th of a name in an iteration is one on all of them."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = workers
        self._meeting: list[Mapping[int, tuple[str, int, int]]] = []
        self._begins: dict[tuple[str, int, int], list[tuple[int, int]]] = {}
        self._ended: list[dict[str, Ints]] = []  # rows by end, by name; "": all
        for index, worker in enumerate(workers):
            rows = np.flatnonzero(worker.spans["kind"] == Kind.COLLECTIVE)
            counts: dict[tuple[str, int], int] = {}
            meetings = {}
            names = [worker.names.get(index, "") for index in worker.spans["name"][rows].tolist()]
            for row, name in zip(rows.tolist(), names, strict=True):
                span = worker.spans[row]
                one = name, int(span["iteration"])
                counts[one] = counts.get(one, 0) + 1
                meetings[row] = (*one, counts[one])
                begins = self._begins.setdefault(meetings[row], [])
                begins.append((int(span["begin_ns"]), index))
            self._meeting.append(meetings)
            order = np.argsort(worker.spans["end_ns"][rows], kind="stable")
            of_name: dict[str, list[int]] = {}
            for place in order.tolist():
                of_name.setdefault(names[place], []).append(int(rows[place]))
            self._ended.append({name: np.array(mine) for name, mine in of_name.items()})
            self._ended[-1][""] = rows[order]

    def last_begin(self, worker: int, span: int) -> tuple[int, int]:
        """When the last rank began it, and which: a worker's index."""
        return max(self._begins[self._meeting[worker][span]])

    def last_ended(self, worker: int, name: str, end_ns: int) -> int:
        """The row of the one that ended last before ``end_ns``: of ``name``, else any; or -1."""
        ended = self._ended[worker]
        rows = ended.get(name, ended[""])
        ends_ns = self._workers[worker].spans["end_ns"][rows]
        place = int(np.searchsorted(ends_ns, end_ns, "right")) - 1
        return int(rows[place]) if place >= 0 else -1

    def meetings(self) -> Mapping[tuple[str, int, int], Sequence[tuple[int, int]]]:
        """Per collective (name, iteration, how-manieth): begin and worker of each rank."""
        return self._begins


def _last_of_rounds(served: Rows, server: Ints) -> Ints:
    """Per row, the row of its key's and round's last arrival."""
    if not len(served):
        return np.zeros(0, np.int64)
    order = np.lexsort((served["arrived_ns"], served["round"], served["key"], server))
    groups = np.stack(
        [server[order], served["key"][order].astype(np.int64), served["round"][order]]
    )
    last = np.append((np.diff(groups, axis=1) != 0).any(axis=0), True)
    lasts = order[last]
    found = np.zeros(len(served), np.int64)
    found[order] = lasts[np.cumsum(last) - last]
    return found


def _transfers_by_served(run: Recorded) -> Mapping[int, tuple[int, int]]:
    """Worker and row of the transfer, by the server's row."""
    return {
        at: (index, row)
        for index, worker in enumerate(run.workers)
        for row, at in enumerate(worker.served.tolist())
        if at >= 0
    }
