"""What the roles of a replayed job do, as lanes for pictures and traces.

worker    iterations; computes: forward and backward of each layer; updates; reduce-scatters and
          all-gathers, from a bucket's first bytes to its last; pushes and answers of partitions
server    sums of partitions
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from byteprophet.graph.labels import Kind
from byteprophet.job.times import Int64Array
from byteprophet.replay.kinds import ReplayedJob
from byteprophet.timeline.role_lanes import Lane

ITERATIONS = "iterations"
_MOST_SLICES = 100_000
_MOST_ITERATIONS = 4
_OF_COMPUTATION = {Kind.FORWARD: "forward", Kind.BACKWARD: "backward", Kind.UPDATE: "update"}


def last_iterations(played: ReplayedJob) -> list[Lane]:
    """The last iterations of all roles, so few that a trace stays small; times count from 0."""
    count = played.begin.shape[1]
    most = max(1, _MOST_SLICES * count // max(1, len(played.replayed.graph)))
    shown = min(count, _MOST_ITERATIONS, most)
    begin_ns = int(played.replayed.start_ns[played.begin[:, -shown]].min())
    lanes = _Lanes(played, count - shown, count - 1).all()
    return [_moved(lane, begin_ns) for lane in lanes]


def one_iteration(played: ReplayedJob, iteration: int) -> tuple[int, list[Lane]]:
    """Its length and the lanes of its slowest worker; times count from its begin there.

    What belongs to the iterations before and after is shown as far as it falls into it.
    """
    replayed = played.replayed
    begins_ns = replayed.start_ns[played.begin[:, iteration]]
    ends_ns = replayed.end_ns[played.end[:, iteration]]
    worker = int(np.argmax(ends_ns - begins_ns))
    begin_ns, end_ns = int(begins_ns[worker]), int(ends_ns[worker])
    last = min(iteration + 1, played.begin.shape[1] - 1)
    lanes = _Lanes(played, max(0, iteration - 2), last).of_worker(worker)
    seen = [lane.within(begin_ns, end_ns) for lane in lanes if lane.label != ITERATIONS]
    return end_ns - begin_ns, [lane for lane in seen if len(lane)]


class _Lanes:
    """The lanes of the iterations ``first`` to ``last``."""

    def __init__(self, played: ReplayedJob, first: int, last: int) -> None:
        self._played, self._replayed = played, played.replayed
        self._labels = labels = played.replayed.graph.labels
        self._shown = (labels.iteration >= first) & (labels.iteration <= last)
        self._iterations = range(first, last + 1)

    def all(self) -> Iterator[Lane]:
        """The lanes of all workers, then those of servers."""
        for worker in range(self._played.begin.shape[0]):
            yield from self.of_worker(worker)
        sums = self._rows(Kind.SUM)
        for server in np.unique(self._labels.rank[sums]).tolist():
            own = sums[self._labels.rank[sums] == server]
            yield self._transfers(f"server-{server}", "sums", "sum", own)

    def of_worker(self, worker: int) -> Iterator[Lane]:
        """The lanes of a worker that have any slice."""
        role = f"worker-{worker}"
        yield self._iteration_lane(role, worker)
        for label, kinds in (
            ("computes", (Kind.FORWARD, Kind.BACKWARD)),
            ("updates", (Kind.UPDATE,)),
        ):
            rows = self._rows(*kinds)
            rows = rows[self._labels.rank[rows] == worker]
            if len(rows):
                yield self._computation(role, label, rows)
        for kind in (Kind.REDUCE_SCATTER, Kind.ALL_GATHER):
            rows = self._rows(kind)
            at_worker = (self._labels.rank[rows] == worker) | (self._labels.peer[rows] == worker)
            if at_worker.any():
                yield self._collectives(role, worker, kind, rows[at_worker])
        pushes = self._rows(Kind.PUSH)
        pushes = pushes[self._labels.rank[pushes] == worker]
        answers = self._rows(Kind.ANSWER_HEAD, Kind.ANSWER)
        answers = answers[self._labels.peer[answers] == worker]
        for label, kind_of_slice, rows in (
            ("pushes", "push", pushes),
            ("answers", "pull", answers),
        ):
            if len(rows):
                yield self._transfers(role, label, kind_of_slice, rows)

    def _rows(self, *kinds: Kind) -> Int64Array:
        return np.flatnonzero(self._shown & np.isin(self._labels.kind, kinds))

    def _iteration_lane(self, role: str, worker: int) -> Lane:
        which = np.array(self._iterations)
        begins_ns = self._replayed.start_ns[self._played.begin[worker, which]]
        ends_ns = self._replayed.end_ns[self._played.end[worker, which]]
        names = tuple(f"iteration {number}" for number in self._iterations)
        kinds = ("iteration",) * len(names)
        return Lane(role, ITERATIONS, begins_ns, ends_ns, kinds, names, np.zeros_like(begins_ns))

    def _computation(self, role: str, label: str, rows: Int64Array) -> Lane:
        """Updates stay even if they take no time: a replay may end with one."""
        begins_ns, ends_ns = self._replayed.start_ns[rows], self._replayed.end_ns[rows]
        kinds = [Kind(kind) for kind in self._labels.kind[rows].tolist()]
        kept = (ends_ns > begins_ns) | (self._labels.kind[rows] == Kind.UPDATE)
        lane = Lane(
            role,
            label,
            begins_ns,
            ends_ns,
            tuple(_OF_COMPUTATION[kind] for kind in kinds),
            tuple(
                self._name(tensor) or f"rest of {_OF_COMPUTATION[kind]}"
                for kind, tensor in zip(kinds, self._labels.tensor[rows].tolist(), strict=True)
            ),
            np.zeros(len(rows), np.int64),
        )
        return lane.at(kept)

    def _collectives(self, role: str, worker: int, kind: Kind, rows: Int64Array) -> Lane:
        """Each bucket until its last bytes arrive; its size is what the worker sends."""
        until_ns = self._replayed.end_ns[rows] + self._replayed.graph.latency_ns[rows]
        sizes = np.where(self._labels.rank[rows] == worker, self._sizes(rows), 0)
        return self._together(
            role, f"{kind.words}s", kind.words, rows, until_ns, sizes, ("tensor",)
        )

    def _transfers(self, role: str, label: str, kind: str, rows: Int64Array) -> Lane:
        """Each partition, as long as it occupies the link or the thread."""
        which = ("tensor", "part", "rank", "peer")
        until_ns = self._replayed.end_ns[rows]
        return self._together(role, label, kind, rows, until_ns, self._sizes(rows), which)

    def _together(
        self,
        role: str,
        label: str,
        kind: str,
        rows: Int64Array,
        until_ns: Int64Array,
        sizes: Int64Array,
        which: tuple[str, ...],
    ) -> Lane:
        """One slice for the operations of an iteration that have the same labels ``which``."""
        labels = self._labels
        columns = [getattr(labels, name)[rows] for name in ("iteration", *which)]
        groups, group = np.unique(np.stack(columns), axis=1, return_inverse=True)
        group = group.reshape(-1)  # some versions of numpy give it another shape
        count = groups.shape[1]
        begins_ns = np.full(count, np.iinfo(np.int64).max)
        ends_ns, size_bytes = np.zeros(count, np.int64), np.zeros(count, np.int64)
        np.minimum.at(begins_ns, group, self._replayed.start_ns[rows])
        np.maximum.at(ends_ns, group, until_ns)
        np.add.at(size_bytes, group, sizes)
        names = [self._name(tensor) for tensor in groups[1].tolist()]
        if "part" in which:
            names = [
                f"{name} [{part}]" for name, part in zip(names, groups[2].tolist(), strict=True)
            ]
        return Lane(role, label, begins_ns, ends_ns, (kind,) * count, tuple(names), size_bytes)

    def _sizes(self, rows: Int64Array) -> Int64Array:
        return self._replayed.graph.size_bytes[rows]

    def _name(self, tensor: int) -> str:
        return self._labels.names[tensor] if tensor >= 0 else ""


def _moved(lane: Lane, begin_ns: int) -> Lane:
    return replace(lane, begin_ns=lane.begin_ns - begin_ns, end_ns=lane.end_ns - begin_ns)
