"""What a replay of traces says: the time of each iteration, what it is spent on, the critical path.

Time is divided on each rank and averaged over ranks: what the device, or the host of a trace
without one, does at each moment. Where several things go on, the first of this list counts.

    compute          a kernel runs, or an operator on the host
    communication    exposed: a collective, and nothing computes
    copies           nothing else on the device
    data loading     the device is idle, and the host waits for a DataLoader
    host             the device is idle, and the host runs: it launches too slowly
    idle             neither: both wait, for another rank or for what is not in the trace
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from byteprophet.errors import UserError
from byteprophet.replay import Replayed, replay
from byteprophet.traces.graph import Durations, TraceGraph, as_recorded, trace_graph
from byteprophet.traces.matching import Matching
from byteprophet.traces.work import RankTrace, Use

Int64Array = npt.NDArray[np.int64]

IDLE = "idle"
LAYERS = {
    "compute": (Use.KERNEL, Use.OPERATOR),
    "communication": (Use.COLLECTIVE,),
    "copies": (Use.COPY,),
    "data loading": (Use.LOADING,),
    "host": (Use.HOST, Use.LAUNCH),
}
"""Uses of time, the first first, and the tasks that stand for them."""

_PATH = 8
"""Entries of the critical path that are kept."""


@dataclass(frozen=True)
class Iteration:
    """A step of all ranks. Times are those of the slowest rank; ``measured_ns`` 0: not recorded."""

    number: int
    measured_ns: int
    replayed_ns: int

    @property
    def error(self) -> float:
        """Replayed over measured, less 1."""
        return self.replayed_ns / self.measured_ns - 1 if self.measured_ns else 0.0


@dataclass(frozen=True, eq=False)
class TraceReplay:
    """A replay of traces."""

    built: TraceGraph
    replayed: Replayed
    iterations: tuple[Iteration, ...]

    @property
    def measured_ns(self) -> int:
        """The mean time of an iteration, as recorded; 0: not recorded."""
        return _mean([one.measured_ns for one in self.iterations])

    @property
    def replayed_ns(self) -> int:
        """The mean time of an iteration in the replay."""
        return _mean([one.replayed_ns for one in self.iterations])

    @property
    def long_run_ns(self) -> int | None:
        """The mean time of an iteration if the job went on for long; None: not known.

        Until a queue of launches is full, the host may be ahead of its device by more and more. In
        the long run, an iteration takes longer by what this grows in one. A single iteration does
        not tell.
        """
        grows_ns = [0]
        for index, trace in enumerate(self.built.traces):
            if not trace.has_device:
                continue
            if len(trace.steps) < 2:
                return None
            first_ns, last_ns = self._ahead_ns(index)
            grows_ns.append((last_ns - first_ns) // (len(trace.steps) - 1))
        return self.replayed_ns + max(grows_ns)

    def _ahead_ns(self, index: int) -> tuple[int, int]:
        """By how much the host is ahead at the end of the first step and of the last one.

        It ends a step so much before the device ends what was launched until then.
        """
        trace, ends_ns = self.built.traces[index], self.ends_ns(index)
        is_stream = [lane.is_stream for lane in trace.lanes]
        work = np.array(
            [
                (place, task.step)
                for place, task in enumerate(trace.tasks)
                if task.lane >= 0 and is_stream[task.lane]
            ],
            dtype=np.int64,
        ).reshape(-1, 2)
        first_ns, last_ns = (
            max(
                0,
                int(ends_ns[work[work[:, 1] <= step.number, 0]].max(initial=0) - ends_ns[step.end]),
            )
            for step in (trace.steps[0], trace.steps[-1])
        )
        return first_ns, last_ns

    @property
    def error(self) -> float | None:
        """Replayed over measured, less 1; None if the trace has no times."""
        return self.replayed_ns / self.measured_ns - 1 if self.measured_ns else None

    def ends_ns(self, index: int) -> Int64Array:
        """When the tasks of trace ``index`` end in the replay."""
        ends: Int64Array = self.replayed.end_ns[self._done(index)]
        return ends

    def starts_ns(self, index: int) -> Int64Array:
        """When they start."""
        first = self.built.first[index]
        count = len(self.built.traces[index].tasks)
        starts: Int64Array = self.replayed.start_ns[first : first + count]
        return starts

    def durations_ns(self, index: int) -> Int64Array:
        """What they take there. A collective of several ranks takes what it takes for all."""
        durations: Int64Array = self.built.graph.duration_ns[self._done(index)]
        return durations

    def use_of_time(self) -> dict[str, int]:
        """What iterations are spent on, averaged over ranks; adds up to their mean iteration."""
        sums = dict.fromkeys((*LAYERS, IDLE), 0)
        total = 0
        numbers = {one.number for one in self.iterations}  # a rank may have further steps
        for index, trace in enumerate(self.built.traces):
            starts_ns, ends_ns = self.starts_ns(index), self.ends_ns(index)
            for step in (one for one in trace.steps if one.number in numbers):
                window = int(ends_ns[step.begin]), int(ends_ns[step.end])
                for name, time_ns in _covered(trace, starts_ns, ends_ns, window).items():
                    sums[name] += time_ns
                total += 1
        return {name: round(time_ns / total) for name, time_ns in sums.items()}

    def critical_path(self) -> tuple[dict[str, int], list[tuple[str, str, int, int]]]:
        """The path that ends last: its time by use, and what takes most of it.

        The latter as use, name, time and number of operations.
        """
        uses: Counter[str] = Counter()
        entries: Counter[tuple[str, str]] = Counter()
        times: Counter[tuple[str, str]] = Counter()
        took_ns = self.replayed.end_ns - self.replayed.start_ns
        tasks = [task for trace in self.built.traces for task in trace.tasks]
        shared = {int(done): at for at, done in enumerate(self.built.done) if done >= len(tasks)}
        for operation in self.replayed.critical_path().tolist():
            time_ns = int(took_ns[operation])
            task = tasks[shared.get(operation, operation)]
            if time_ns:
                uses[task.use.value] += time_ns
                times[task.use.value, task.name] += time_ns
                entries[task.use.value, task.name] += 1
        most = [(*key, time_ns, entries[key]) for key, time_ns in times.most_common(_PATH)]
        return dict(uses.most_common()), most

    def as_json(self) -> dict[str, Any]:
        """The figures as plain data."""
        uses, entries = self.critical_path()
        traces = self.built.traces
        return {
            "schema": 1,
            "ranks": [trace.rank for trace in traces],
            "files": [str(trace.path) for trace in traces],
            "tasks": sum(len(trace.tasks) for trace in traces),
            "matched": self.built.matched,
            "unmatched": self.built.unmatched,
            "ungrouped": self.built.matching.ungrouped,
            "unexplained_ns": [trace.unexplained_ns for trace in traces],
            "inferred_ns": [trace.inferred_ns for trace in traces],
            "measured_ns": self.measured_ns or None,
            "replayed_ns": self.replayed_ns,
            "long_run_ns": self.long_run_ns,
            "error": self.error,
            "iterations": [
                {
                    "step": one.number,
                    "measured_ns": one.measured_ns or None,
                    "replayed_ns": one.replayed_ns,
                }
                for one in self.iterations
            ],
            "use_of_time_ns": self.use_of_time(),
            "critical_path_ns": uses,
            "critical_path": [
                {"use": use, "name": name, "time_ns": time_ns, "operations": count}
                for use, name, time_ns, count in entries
            ],
        }

    def _done(self, index: int) -> Int64Array:
        first = self.built.first[index]
        done: Int64Array = self.built.done[first : first + len(self.built.traces[index].tasks)]
        return done


def replay_traces(
    traces: Sequence[RankTrace],
    durations: Durations = as_recorded,
    *,
    with_waits: bool = True,
    matching: Matching | None = None,
) -> TraceReplay:
    """Replays the traces of one job. ``matching`` is theirs, if it is known already.

    Raises:
        UserError: they have no step in common, their clocks do not agree, or ranks waited for each
            other in a ring.
    """
    numbers = set.intersection(*({step.number for step in trace.steps} for trace in traces))
    if not numbers:
        names = ", ".join(str(trace.path) for trace in traces[:3])
        raise UserError(f"{names}: have no ProfilerStep in common: are they of one job?")
    built = trace_graph(traces, durations, with_waits=with_waits, matching=matching)
    try:
        replayed = replay(built.graph)
    except UserError as error:
        others = " with the other ranks" if len(traces) > 1 else ""
        raise UserError(f"{traces[0].path}: cannot be replayed{others}: {error}") from None
    iterations = []
    for number in sorted(numbers):
        measured, simulated = [0], [0]
        for index, trace in enumerate(traces):
            ends_ns = replayed.end_ns[built.first[index] :]
            step = next(step for step in trace.steps if step.number == number)
            measured.append(trace.step_ns(step) if trace.has_times else 0)
            simulated.append(int(ends_ns[step.end] - ends_ns[step.begin]))
        iterations.append(Iteration(number, max(measured), max(simulated)))
    return TraceReplay(built, replayed, tuple(iterations))


def _covered(
    trace: RankTrace, starts_ns: Int64Array, ends_ns: Int64Array, window: tuple[int, int]
) -> Mapping[str, int]:
    """The time of each use within ``window``."""
    begin_ns, end_ns = window
    inside = np.flatnonzero((ends_ns > begin_ns) & (starts_ns < end_ns) & (ends_ns > starts_ns))
    layer_of = {use: at for at, uses in enumerate(LAYERS.values()) for use in uses}
    none = len(LAYERS)
    layers = np.array([layer_of.get(trace.tasks[at].use, none) for at in inside], dtype=np.int64)
    starts, ends = starts_ns[inside].clip(begin_ns), ends_ns[inside].clip(max=end_ns)
    edges = np.unique(np.concatenate((starts, ends, [begin_ns, end_ns])))
    lengths = np.diff(edges)
    use = np.full(len(lengths), none)
    for layer in reversed(range(none)):
        chosen = layers == layer
        opened = np.zeros(len(edges), dtype=np.int64)
        np.add.at(opened, np.searchsorted(edges, starts[chosen]), 1)
        np.add.at(opened, np.searchsorted(edges, ends[chosen]), -1)
        use[np.cumsum(opened)[:-1] > 0] = layer
    times = np.bincount(use, weights=lengths, minlength=none + 1).astype(np.int64)
    return dict(zip((*LAYERS, IDLE), times.tolist(), strict=True))


def _mean(values: Sequence[int]) -> int:
    return round(sum(values) / len(values))
