"""The critical path: from the last iteration's end back to the first one's start, step by step.

Each step is what the next step waited for, according to the recording:

    forward, backward, update, computation     of a layer, in the training thread
    other          that thread's time between these, and the time that threads take to wake up
    pull           a partition's answer passed the worker's link: "worker 0 down"
    answer         the answer waited at the server, behind more urgent answers
    sum, to sum    the server summed; the last push had arrived and waited for the sum
    push           the push that came last passed its worker's link: "worker 1 up"
    link busy      that push was ready, or that answer had left, but the link carried this partition
    queued         the push was ready, and the link carried nothing
    collective     from when the last rank began it
    communication  a wait whose cause was not recorded

From a gradient that was queued, the path continues in the backward pass of the worker that pushed
last. So it can leave an iteration before reaching the iteration's start, and skip work that is not
on it: making such work shorter would not make an iteration shorter. Steps follow one another
without gaps. So the steps of an iteration sum to it, for the worker that ended last.

Without servers' tables, a push is taken to end with its acknowledgement, and "pull" begins there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from byteprophet.diagnose.computing import CALLED, Stretches, computing, updating
from byteprophet.diagnose.gates import Gate, Gates
from byteprophet.diagnose.links import DIRECTIONS, carried
from byteprophet.diagnose.recorded import Ints, Recorded
from byteprophet.timeline.tables import Kind


@dataclass(frozen=True)
class Step:
    """One step. ``name``: its layer, tensor or collective. ``where``: a role, or a role's link."""

    kind: str
    name: str
    where: str
    begin_ns: int
    end_ns: int


@dataclass(frozen=True)
class Path:
    """``steps``: in the order of time; each begins where the previous one ends.

    ``worker``: index of the worker on which the path ends. Its iterations divide the path.
    """

    steps: Sequence[Step]
    worker: int


def critical_path(run: Recorded) -> Path:
    """The critical path through all measured iterations."""
    ends_ns = [int(worker.ends_ns[-1]) for worker in run.workers]
    worker = int(np.argmax(ends_ns))
    walk = _Walk(run, int(run.workers[worker].starts_ns[0]))
    walk.back_from(worker, ends_ns[worker])
    return Path(walk.steps[::-1], worker)


def inside_ns(run: Recorded, path: Path) -> Ints:
    """How much of each step lies in the iterations that divide the path."""
    own = run.workers[path.worker]
    before_ns = np.append(0, np.cumsum(own.ends_ns - own.starts_ns))

    def until(times_ns: Ints) -> Ints:
        """The summed length of iterations before each of these times."""
        begun = np.searchsorted(own.starts_ns, times_ns, "right")
        left_ns = np.maximum(0, own.ends_ns[np.maximum(0, begun - 1)] - times_ns)
        passed_ns: Ints = before_ns[begun] - np.where(begun > 0, left_ns, 0)
        return passed_ns

    times_ns = np.array([(step.begin_ns, step.end_ns) for step in path.steps], np.int64)
    return until(times_ns[:, 1]) - until(times_ns[:, 0])


class _Walk:
    """Walks back in time, down to ``first_ns``; ``steps`` are in reverse order of time."""

    def __init__(self, run: Recorded, first_ns: int) -> None:
        self.steps: list[Step] = []
        self._run = run
        self._first_ns = first_ns
        self._gates = Gates(run)
        self._threads = [computing(worker) for worker in run.workers]
        self._updates = [updating(worker) for worker in run.workers]
        self._links = [
            {direction: carried(run, worker, direction) for direction in DIRECTIONS}
            for worker in range(len(run.workers))
        ]
        self._now_ns = 0

    def back_from(self, worker: int, end_ns: int) -> None:
        self._now_ns = end_ns
        while self._now_ns > self._first_ns:
            before_ns = self._now_ns
            worker = self._behind(worker)
            # If clocks or recordings lead nowhere, continue with this thread's own past.
            if self._now_ns == before_ns:
                self._take("other", "", self._role(worker), self._begin_ns(worker))
                if self._now_ns == before_ns:
                    self._take("other", "", self._role(worker), self._first_ns)

    def _behind(self, worker: int) -> int:
        """Take what ``worker`` did until now and what that waited for; return the next worker."""
        thread = self._threads[worker]
        index = thread.at(self._now_ns)
        if index < 0:
            self._take("other", "", self._role(worker), self._first_ns)
            return worker
        kind, begin_ns = int(thread.kind[index]), int(thread.begin_ns[index])
        spans, names = self._run.workers[worker].spans, self._run.workers[worker].names
        row = int(thread.row[index])
        name = names.get(int(spans["name"][row]), "") if row >= 0 else ""
        if kind in CALLED:
            self._take(CALLED[kind], name, self._role(worker), begin_ns)
            return worker
        if kind == Kind.COLLECTIVE and int(spans["end_ns"][row]) > self._now_ns:
            # The thread went on before the collective ended, so it did not wait for it.
            self._take("other", "", self._role(worker), begin_ns)
            return worker
        gate = (
            self._gates.of_wait(worker, name, self._now_ns)
            if kind == Kind.WAIT
            else self._gates.of_collective(worker, row)
        )
        if gate is None or gate.there_ns <= begin_ns:
            # Communication ended earlier: the thread waited for the updater or an unknown cause.
            kind_of = "communication" if gate is None else "other"
            self._take_updates(worker, begin_ns, kind_of, name)
            return worker
        self._take_updates(worker, gate.there_ns, "other", name)
        return self._communicated(worker, name, gate, begin_ns)

    def _communicated(self, worker: int, name: str, gate: Gate, begin_ns: int) -> int:
        """Take steps from the answer back to the gradient that was last; return its worker."""
        run = self._run
        if gate.span >= 0:
            spans, names = run.workers[worker].spans, run.workers[worker].names
            name = names.get(int(spans["name"][gate.span]), name)
            self._take("collective", name, "all ranks", gate.last_ns)
            return gate.late
        transfer = gate.transfer
        if gate.served < 0:
            row = run.workers[worker].transfers[transfer]
            name = run.tensor(int(row["key"]))
            self._travelled(worker, "pull", transfer, gate.last_ns)
            self._take("pull", name, f"{self._role(worker)} down", gate.last_ns)
            self._pushed(worker, transfer)
            return worker
        asked, last = run.served[gate.served], run.served[gate.last_served]
        name, server = run.tensor(int(asked["key"])), f"server {run.server[gate.served]}"
        if transfer >= 0:
            self._travelled(worker, "pull", transfer, int(asked["answered_ns"]))
        self._take("pull", name, f"{self._role(worker)} down", int(asked["answered_ns"]))
        self._take("answer", name, server, int(last["sum_end_ns"]))
        self._take("sum", name, server, int(last["sum_begin_ns"]))
        self._take("to sum", name, server, gate.last_ns)
        if gate.last_served in self._gates.transfer_of:
            late, transfer = self._gates.transfer_of[gate.last_served]
            self._pushed(late, transfer)
            return late
        # The time of sending is not known: it is at the earliest when its worker began to wait.
        late = gate.late if gate.late < len(run.workers) else worker
        thread = self._threads[late]
        index = thread.at(self._now_ns)
        if index >= 0 and thread.kind[index] == Kind.WAIT:
            self._take("push", name, f"{self._role(late)} up", int(thread.begin_ns[index]))
        return late

    def _pushed(self, worker: int, transfer: int) -> None:
        """Take steps from a push's arrival back to when its gradient was ready."""
        ready_ns = int(self._run.workers[worker].transfers[transfer]["ready_ns"])
        self._travelled(worker, "push", transfer, ready_ns)

    def _travelled(self, worker: int, direction: str, transfer: int, since_ns: int) -> None:
        """Take steps back to ``since_ns``, when a partition was ready for the link."""
        keys = self._run.workers[worker].transfers["key"]
        where = f"{self._role(worker)} {'up' if direction == 'push' else 'down'}"
        link = self._links[worker][direction]
        while since_ns and self._now_ns > max(since_ns, self._first_ns):
            there = int(np.searchsorted(link.begin_ns, self._now_ns, "left")) - 1
            free_ns = max(since_ns, int(link.end_ns[there])) if there >= 0 else since_ns
            self._take("queued", self._run.tensor(int(keys[transfer])), where, free_ns)
            if self._now_ns > since_ns:
                row = int(link.row[there])
                kind = direction if row == transfer else "link busy"
                begin_ns = max(since_ns, int(link.begin_ns[there]))
                self._take(kind, self._run.tensor(int(keys[row])), where, begin_ns)

    def _take_updates(self, worker: int, since_ns: int, otherwise: str, name: str) -> None:
        """Take updates back to ``since_ns``; ``otherwise``: the kind of the time between them."""
        updates, spans = self._updates[worker], self._run.workers[worker].spans
        names = self._run.workers[worker].names
        while self._now_ns > max(since_ns, self._first_ns):
            index = updates.at(self._now_ns)
            if index < 0 or updates.row[index] < 0:
                begin_ns = int(updates.begin_ns[index]) if index >= 0 else since_ns
                self._take(otherwise, name, self._role(worker), max(since_ns, begin_ns))
                continue
            of = names.get(int(spans["name"][updates.row[index]]), "")
            begin_ns = max(since_ns, int(updates.begin_ns[index]))
            self._take("update", of, self._role(worker), begin_ns)

    def _take(self, kind: str, name: str, where: str, begin_ns: int) -> None:
        """Add a step from ``begin_ns`` until now, unless that time is not known (0) or later."""
        begin_ns = max(begin_ns, self._first_ns) if begin_ns > 0 else self._now_ns
        if begin_ns < self._now_ns:
            self.steps.append(Step(kind, name, where, begin_ns, self._now_ns))
            self._now_ns = begin_ns

    def _begin_ns(self, worker: int) -> int:
        thread: Stretches = self._threads[worker]
        index = thread.at(self._now_ns)
        return int(thread.begin_ns[index]) if index >= 0 else self._first_ns

    def _role(self, worker: int) -> str:
        return f"worker {self._run.workers[worker].rank}"
