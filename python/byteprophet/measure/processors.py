"""Processor time from wall time, where the roles of a job shared the cores of a machine.

What a thread computes takes longer while more threads could run than there are cores. Spans tell
which threads those were: the training threads, unless they waited, updaters, those that compressed
gradients, and those that carried messages, whose processor time is known. So at any time,
a thread that computes had

    share = min(1, (cores - processor time of messages) / threads that compute)

of a core, and at least what an even division among all threads leaves it. The integral of the share
is a clock of processor time. ``Clocks`` has one for each of these threads; measured
with these instead of the wall clock, a job's times are what it would take alone
(``Cluster.processors``).

A message passes when its link has sent those before it. So in a rank, the bytes of a collective
pass between the end of the one before it, in the order of their ends, and its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from byteprophet.job import Cluster, Processors
from byteprophet.job.times import Int64Array
from byteprophet.measure.waits import Spans, training_waits, union
from byteprophet.timeline.events import Events
from byteprophet.timeline.tables import Kind, Rows

COMPRESSING, AVERAGING = "compressing", "averaging"  # torch/sync/compressing.py

_Floats = npt.NDArray[np.float64]
_THREADS = 2
"""Those that carry messages of one kind: one sends, one receives."""


@dataclass(frozen=True)
class Use:
    """The machines of a job's roles, and the processor time of what passes between two of them.

    ``message_ns``: of a message of gloo, beside its bytes; others have none.
    """

    machines: tuple[Processors, ...]
    ns_per_byte: float
    message_ns: int = 0

    @classmethod
    def of(cls, cluster: Cluster) -> Use | None:
        """What ``on`` put into ``cluster``; None if that shares no cores."""
        if not cluster.processors:
            return None
        costs = cluster.costs
        return cls(cluster.processors, costs.processor_ns_per_byte, costs.message_processor_ns)

    def on(self, cluster: Cluster, limits_bps: Sequence[int | None]) -> Cluster:
        """``cluster`` with shared cores.

        What a byte took beyond the limit of a link was the processors' part, which the cores have
        now. A link without a limit is as fast as a thread at each end. ``limits_bps``: of workers'
        links; None: no limit.
        """
        costs = replace(
            cluster.costs,
            host_ns_per_byte=0.0,
            processor_ns_per_byte=self.ns_per_byte,
            message_processor_ns=self.message_ns,
        )
        workers = cluster.workers
        if self.ns_per_byte:
            rate_bps = round(2 * 8e9 / self.ns_per_byte)  # one core at each end
            workers = tuple(
                replace(host, up_bps=rate_bps, down_bps=rate_bps) if limit is None else host
                for host, limit in zip(workers, limits_bps, strict=True)
            )
        return replace(cluster, workers=workers, costs=costs, processors=self.machines)


@dataclass(frozen=True)
class Arrivals:
    """What arrived at a rank: collectives with begin, end and bytes, each of shape (collectives,).

    A collective begins when all ranks have begun it. ``messages``: in which each one arrived.
    """

    begin_ns: Int64Array
    end_ns: Int64Array
    size_bytes: _Floats
    messages: int = 0


def served_arrivals(transfers: Rows) -> tuple[Arrivals, Arrivals]:
    """A worker's pushes, which servers have received when they acknowledge them, and its answers.

    ``transfers``: of the worker, in the table of that name.
    """
    pushes = transfers[transfers["acked_ns"] > transfers["sent_ns"]]
    answers = pushes[pushes["pulled_ns"] > pushes["acked_ns"]]
    return (
        Arrivals(pushes["sent_ns"], pushes["acked_ns"], pushes["size_bytes"].astype(np.float64)),
        Arrivals(answers["acked_ns"], answers["pulled_ns"], answers["size_bytes"].astype(float)),
    )


class Clock:
    """Processor time of a thread, as a function of wall time."""

    def __init__(self, zero_ns: int, knots_ns: _Floats, worked_ns: _Floats) -> None:
        """``knots_ns``: wall times since ``zero_ns``; the clock is straight between two of them."""
        self._zero_ns, self._knots_ns, self._worked_ns = zero_ns, knots_ns, worked_ns

    def at(self, times_ns: npt.ArrayLike) -> Int64Array:
        """The processor time at each of ``times_ns``."""
        since_ns = np.asarray(times_ns, np.int64) - self._zero_ns
        found = np.interp(since_ns.astype(np.float64), self._knots_ns, self._worked_ns)
        return np.rint(found).astype(np.int64)

    def worked_ns(self, times_ns: Sequence[int]) -> Int64Array:
        """From each of ``times_ns`` to the next; 0 if the next one is earlier."""
        worked: Int64Array = np.maximum(0, np.diff(self.at(times_ns)))
        return worked


class Clocks:
    """The clocks of all ranks: ``training``, ``updating``, ``compressing``, by rank."""

    def __init__(
        self, spans: Sequence[Events], arrivals: Sequence[Sequence[Arrivals]], use: Use
    ) -> None:
        """``spans``: of each rank, as it recorded them, on one clock.

        ``arrivals``: of each rank, in any number of sequences of messages.
        """
        self.training: dict[int, Clock] = {}
        self.updating: dict[int, Clock] = {}
        self.compressing: dict[int, Clock] = {}
        for machine in use.machines:
            self._machine(machine, spans, arrivals, use)

    def _machine(
        self,
        machine: Processors,
        spans: Sequence[Events],
        arrivals: Sequence[Sequence[Arrivals]],
        use: Use,
    ) -> None:
        ranks = machine.workers
        computing = [_training(spans[rank].rows) for rank in ranks]
        updating = [_updating(spans[rank].rows) for rank in ranks]
        compressing = [_compressing(spans[rank]) for rank in ranks]
        passing = [
            _passing(each, use) for rank in ranks for each in arrivals[rank] if len(each.end_ns)
        ]
        edges = [
            each
            for pairs in (computing, updating, compressing, [pair for pair, _ in passing])
            for begins, ends in pairs
            for each in (begins, ends)
        ]
        knots = np.unique(np.concatenate(edges))
        zero_ns = int(knots[0])
        trains = [_count(knots, pair) for pair in computing]
        updates = [_count(knots, pair) for pair in updating]
        rates = [_count(knots, pair, rate) for pair, rate in passing]
        compresses = [_count(knots, pair) for pair in compressing]
        threads = sum(trains) + sum(updates) + sum(compresses)
        used = sum(rates)
        carrying = _THREADS * sum((rate > 0).astype(float) for rate in rates)
        even = machine.cores * threads / np.maximum(1.0, threads + carrying)
        left = np.maximum(machine.cores - used, even)
        share = np.minimum(1.0, left / np.maximum(1.0, threads))
        since_ns = (knots - zero_ns).astype(np.float64)
        lasted_ns = np.diff(since_ns)
        for place, rank in enumerate(ranks):
            for clocks, runs in (
                (self.training, trains),
                (self.updating, updates),
                (self.compressing, compresses),
            ):
                worked = np.concatenate(([0.0], np.cumsum(lasted_ns * share * runs[place])))
                clocks[rank] = Clock(zero_ns, since_ns, worked)


def _training(rows: Rows) -> Spans:
    """When a training thread ran: from its first span to its last, but not in waits."""
    first_ns, last_ns = int(rows["begin_ns"].min()), int(rows["end_ns"].max())
    begins, ends = training_waits(rows)
    return np.append(first_ns, ends), np.append(begins, max([last_ns, *ends[-1:].tolist()]))


def _updating(rows: Rows) -> Spans:
    """When an updater ran; the training thread's own updates do not count."""
    updates = rows[rows["kind"] == Kind.UPDATE]
    own = rows["lane"][rows["kind"] == Kind.FORWARD]
    updates = updates[~np.isin(updates["lane"], own)]
    return union(updates["begin_ns"], updates["end_ns"])


def _compressing(spans: Events) -> Spans:
    """When a rank compressed gradients, or averaged their forms."""
    kinds = (f"{COMPRESSING} ", f"{AVERAGING} ")
    wanted = [number for number, name in spans.names.items() if name.startswith(kinds)]
    rows = spans.rows
    rows = rows[(rows["kind"] == Kind.COMPUTE) & np.isin(rows["name"], wanted)]
    return union(rows["begin_ns"], rows["end_ns"])


def _passing(arrivals: Arrivals, use: Use) -> tuple[Spans, _Floats]:
    """When the bytes of each collective passed, and how many cores these took meanwhile."""
    order = np.argsort(arrivals.end_ns, kind="stable")
    begin_ns, end_ns = arrivals.begin_ns[order], arrivals.end_ns[order]
    took_ns = arrivals.size_bytes[order] * use.ns_per_byte + arrivals.messages * use.message_ns
    before_ns = np.append(begin_ns[:1], np.maximum.accumulate(end_ns)[:-1])
    since_ns = np.minimum(np.maximum(begin_ns, before_ns), end_ns - 1)
    return (since_ns, end_ns), took_ns / (end_ns - since_ns)


def _count(knots: Int64Array, spans: Spans, of: _Floats | float = 1.0) -> _Floats:
    """The sum of ``of`` over the spans that cover each time between two knots, (knots - 1,)."""
    steps = np.zeros(len(knots))
    begins, ends = spans
    np.add.at(steps, np.searchsorted(knots, begins), of)
    np.add.at(steps, np.searchsorted(knots, ends), -np.asarray(of))
    summed: _Floats = np.cumsum(steps)[:-1]
    return np.where(np.abs(summed) < 1e-9, 0.0, summed)
