"""The graph of all ranks, for the replay.

A task is an operation with its duration; there are no devices, because the order on threads and
streams is recorded, and tasks need each other in this order. A collective that several ranks
recorded starts when the last of them has arrived, takes the time that the last one recorded, which
had nobody to wait for, and ends on all of them at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from byteprophet.graph import Graph, GraphBuilder, Label
from byteprophet.traces.clocks import origins
from byteprophet.traces.matching import Matching, match
from byteprophet.traces.work import RankTrace, Task

Int64Array = npt.NDArray[np.int64]

Durations = Callable[[Task, int], int]
"""The time that a task takes, given it and its time in the trace, in nanoseconds."""


def as_recorded(task: Task, duration_ns: int) -> int:
    """The time that the task took in the trace."""
    return duration_ns


@dataclass(frozen=True, eq=False)
class TraceGraph:
    """The graph of ranks.

    Attributes:
        traces: the ranks' traces.
        graph: the graph; first all tasks of the first trace, then those of the second, and so on.
        first: the operation of each trace's first task.
        done: for each task, the operation whose end is its end.
        origin_ns: the time of each trace that is 0 in the replay.
        matching: the collectives and messages that several ranks recorded.
    """

    traces: tuple[RankTrace, ...]
    graph: Graph
    first: tuple[int, ...]
    done: Int64Array
    origin_ns: tuple[int, ...]
    matching: Matching

    @property
    def matched(self) -> int:
        """The number of collectives and messages that several ranks recorded."""
        return len(self.matching.meetings)

    @property
    def unmatched(self) -> int:
        """The number of those of one rank whose counterparts are not known."""
        return len(self.matching.unmatched)


def trace_graph(
    traces: Sequence[RankTrace],
    durations: Durations = as_recorded,
    *,
    with_waits: bool = True,
    matching: Matching | None = None,
) -> TraceGraph:
    """Builds the graph. Without waits, tasks of different lanes only wait for launches.

    A negative duration is taken as 0. ``matching`` is that of the traces, if it is known already.
    Raises ``UserError`` if the clocks of ranks do not agree.
    """
    matching = matching or match(traces)
    together = matching.meetings
    first = [0, *np.cumsum([len(trace.tasks) for trace in traces]).tolist()]
    origin_ns = origins(traces, together)
    names: dict[str, int] = {}
    columns = _Columns()
    done = np.arange(first[-1], dtype=np.int64)
    matched = np.zeros(first[-1], dtype=bool)
    shared_ns = []
    for number, meeting in enumerate(together):
        tasks = [traces[index].tasks[place] for index, place in meeting.tasks]
        shared_ns.append(min(durations(task, task.duration_ns) for task in tasks))
        for index, place in meeting.tasks:
            done[first[index] + place] = first[-1] + number
            matched[first[index] + place] = True
    for index, trace in enumerate(traces):
        for place, task in enumerate(trace.tasks):
            operation = first[index] + place
            columns.duration_ns.append(
                0 if matched[operation] else max(0, durations(task, task.duration_ns))
            )
            columns.release_ns.append(
                max(0, task.begin_ns - origin_ns[index]) if task.released else 0
            )
            columns.rank.append(trace.rank)
            columns.iteration.append(task.step)
            columns.name.append(names.setdefault(task.name, len(names)))
            before = (*task.needs, *task.waits) if with_waits else task.needs
            for other in before:
                columns.before.append(int(done[first[index] + other]))
                columns.after.append(operation)
    builder = GraphBuilder(names)
    label = Label(rank=columns.rank, iteration=columns.iteration, tensor=columns.name)
    builder.add_block(first[-1], columns.duration_ns, label=label, release_ns=columns.release_ns)
    if together:
        builder.add_block(len(together), np.maximum(shared_ns, 0))
        arrive = np.flatnonzero(matched)
        builder.depend_each(arrive, done[arrive])
    builder.depend_each(
        np.array(columns.before, dtype=np.int64), np.array(columns.after, dtype=np.int64)
    )
    return TraceGraph(
        tuple(traces),
        builder.freeze(),
        tuple(first[:-1]),
        done,
        origin_ns,
        matching,
    )


class _Columns:
    """Columns of operations and dependencies."""

    def __init__(self) -> None:
        self.duration_ns: list[int] = []
        self.release_ns: list[int] = []
        self.rank: list[int] = []
        self.iteration: list[int] = []
        self.name: list[int] = []
        self.before: list[int] = []
        self.after: list[int] = []
