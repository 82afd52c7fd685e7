"""Writes a replay for https://ui.perfetto.dev: a process per rank, a track per thread and stream.

Arrows lead from a task to one of another track that waited for it.
"""

from __future__ import annotations

from pathlib import Path

from byteprophet.timeline.perfetto import Written
from byteprophet.timeline.trace_file import TraceFile, new_trace_file, quoted
from byteprophet.traces.result import TraceReplay


def write_perfetto_replay(path: Path, result: TraceReplay) -> Written:
    """Writes the replay to ``path``, gzipped if its name ends in ``.gz``."""
    with new_trace_file(path) as file:
        next_tid = len(result.built.traces) + 1
        for index, trace in enumerate(result.built.traces):
            pid = index + 1
            file.process(pid, f"rank {trace.rank}", pid)
            _write_iterations(file, result, index, next_tid)
            _write_tasks(file, result, index, next_tid + 1)
            next_tid += 1 + len(trace.lanes)
        file.end({"replayed": [str(trace.path) for trace in result.built.traces]})
    return Written(path, file.slices, file.arrows)


def _write_iterations(file: TraceFile, result: TraceReplay, index: int, tid: int) -> None:
    trace, ends_ns = result.built.traces[index], result.ends_ns(index).tolist()
    file.thread(index + 1, tid, "iterations")
    for step in trace.steps:
        name = quoted(f"ProfilerStep#{step.number}")
        file.slice(index + 1, tid, name, ends_ns[step.begin], ends_ns[step.end])


def _write_tasks(file: TraceFile, result: TraceReplay, index: int, first_tid: int) -> None:
    trace = result.built.traces[index]
    begins_ns, ends_ns = result.starts_ns(index).tolist(), result.ends_ns(index).tolist()
    for lane, about in enumerate(trace.lanes):
        file.thread(index + 1, first_tid + lane, about.name)
    shown = [
        place
        for place, task in enumerate(trace.tasks)
        if task.lane >= 0 and ends_ns[place] > begins_ns[place]
    ]
    names: dict[str, str] = {}
    for place in sorted(shown, key=lambda at: (trace.tasks[at].lane, begins_ns[at])):
        task = trace.tasks[place]
        name = names.setdefault(task.name, quoted(task.name))
        tid = first_tid + task.lane
        file.slice(index + 1, tid, name, begins_ns[place], ends_ns[place])
    is_shown = set(shown)
    for place in shown:
        for other in trace.tasks[place].waits:
            if other in is_shown:
                points = [
                    (index + 1, first_tid + trace.tasks[at].lane, time_ns)
                    for at, time_ns in ((other, ends_ns[other] - 1), (place, begins_ns[place]))
                ]
                file.arrow(file.arrows + 1, points)
