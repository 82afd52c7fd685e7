"""Finds what ended a wait: the last partition to come back, or a collective, and its own waits.

A wait for a gradient ends when its last partition has come back and its update has been made. For
that partition, the following times are known as far as they were recorded:

    own          this worker's push reached the server
    last         the last worker's push reached it: ``own`` to ``last`` is waiting for others
    there        the answer reached this worker; then come the update, or a thread's wake-up

The times of a collective are similar: this rank began it, the last rank began it, it ended. Under
``stock`` nothing recorded when an answer reached its worker, so the end of the wait is taken for
it.

A wait is for the tensor in its name, or else for all tensors. It was ended by what came back last
before its end, whatever iteration that tensor belonged to. If the job had two transports, that is
the later one of a partition and of a collective, as far as the tensor has either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from byteprophet.diagnose.recorded import Ints, Recorded, Worker
from byteprophet.diagnose.routed import Routed
from byteprophet.order_statistics import distinct
from byteprophet.timeline.tables import Kind, Rows, tensor_of


@dataclass(frozen=True)
class Gate:
    """The times above. ``late``: index of the worker that was last, -1 if not known.

    ``transfer``: row of the worker's transfers. ``served``, ``last_served``: rows of the servers,
    for this worker and the last one. ``span``: row of a collective. -1: none.
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
        if self._run.routed.meshed:
            return self._of_routed(worker, name, end_ns)
        returns = self._by_worker[worker]
        transfer = returns.transfer(name, end_ns)
        if transfer >= 0:
            return self._of_transfer(worker, transfer)
        if (span := self._collectives.last_ended(worker, name, end_ns)) >= 0:
            return self.of_collective(worker, span)
        served = returns.served(end_ns)
        return self._with_round(served, end_ns, -1) if served >= 0 else None

    def _of_routed(self, worker: int, name: str, end_ns: int) -> Gate | None:
        """The later one of what servers and the mesh had of ``name``; of all, if it is unknown."""
        returns, routed = self._by_worker[worker], self._run.routed
        over_mesh, to_servers = name in routed.meshed, name in returns
        found = []
        if to_servers or not over_mesh:
            transfer = returns.transfer(name, end_ns)
            found += [self._of_transfer(worker, transfer)] if transfer >= 0 else []
        if over_mesh or not to_servers:
            known = name if over_mesh else ""
            span = self._collectives.last_ended_of(worker, routed, known, end_ns)
            found += [self.of_collective(worker, span)] if span >= 0 else []
        return max(found, key=lambda gate: gate.there_ns, default=None)

    def of_collective(self, worker: int, span: int) -> Gate:
        """The gate of a collective itself."""
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
        self._rows: dict[str, tuple[Ints, Ints]] = {}  # by parameter; and when they were pulled
        sent: dict[str, list[int]] = {}  # numbers: a parameter travels alone, then in a buffer
        for number in distinct(numbers).tolist():
            if name := run.tensors.get(number):
                for parameter in map(run.routed.of_transfer, run.fused.of(name)):
                    sent.setdefault(parameter, []).append(number)
        found: dict[tuple[int, ...], tuple[Ints, Ints]] = {}
        for parameter, of_parameter in sent.items():
            together = tuple(of_parameter)
            if together not in found:
                rows = self._all[np.isin(numbers, together)]
                found[together] = rows, pulled_ns[rows]
            self._rows[parameter] = found[together]
        # ps-lite numbers workers in the order of their ranks.
        served = np.flatnonzero((run.served["worker"] == worker) & (run.served["answered_ns"] > 0))
        self._served = served[np.argsort(run.served["answered_ns"][served], kind="stable")]
        self._answered_ns = run.served["answered_ns"][self._served]

    def __contains__(self, name: str) -> bool:
        """Whether a gradient of this name, or a piece of one, was sent."""
        return name in self._rows

    def transfer(self, name: str, end_ns: int) -> int:
        rows, pulled_ns = self._rows.get(name, (self._all, self._all_pulled_ns))
        place = int(np.searchsorted(pulled_ns, end_ns, "right")) - 1
        return int(rows[place]) if place >= 0 else -1

    def served(self, end_ns: int) -> int:
        place = int(np.searchsorted(self._answered_ns, end_ns, "right")) - 1
        return int(self._served[place]) if place >= 0 else -1


class Collectives:
    """Matches collectives of all ranks: the n-th of a name and iteration is the same on all."""

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
        """When the last rank began the collective, and the index of that worker."""
        return max(self._begins[self._meeting[worker][span]])

    def last_ended(self, worker: int, name: str, end_ns: int) -> int:
        """Row of the collective that ended last before ``end_ns``: of ``name``, else any; or -1."""
        ended = self._ended[worker]
        rows = ended.get(name, ended[""])
        ends_ns = self._workers[worker].spans["end_ns"][rows]
        place = int(np.searchsorted(ends_ns, end_ns, "right")) - 1
        return int(rows[place]) if place >= 0 else -1

    def last_ended_of(self, worker: int, routed: Routed, parameter: str, end_ns: int) -> int:
        """The same of the collectives that have something of ``parameter``; "": of any."""
        if not parameter:
            return self.last_ended(worker, "", end_ns)
        last, last_ns = -1, 0
        for name in self._ended[worker]:
            if routed.of_collective(parameter, name):
                row = self.last_ended(worker, name, end_ns)
                ended_ns = int(self._workers[worker].spans["end_ns"][row]) if row >= 0 else 0
                last, last_ns = (row, ended_ns) if ended_ns > last_ns else (last, last_ns)
        return last

    def meetings(self) -> Mapping[tuple[str, int, int], Sequence[tuple[int, int]]]:
        """Start and worker of each rank, by collective: name, iteration, occurrence from 1."""
        return self._begins


def _last_of_rounds(served: Rows, server: Ints) -> Ints:
    """For each row, the row of the last arrival in the same round of its key."""
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
