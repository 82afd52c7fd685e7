"""Traces that are written event by event."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from byteprophet.traces.load import load_trace
from byteprophet.traces.work import RankTrace, Task

Event = dict[str, Any]


def operator(thread: int, begin_us: float, end_us: float, name: str = "aten::mm") -> Event:
    """A call on a thread; names without a namespace and a colon are annotations' in ``step``."""
    return _event("cpu_op", name, 1, thread, begin_us, end_us)


def annotation(
    thread: int, begin_us: float, end_us: float, name: str, **arguments: object
) -> Event:
    """An annotation on a thread."""
    return _event("user_annotation", name, 1, thread, begin_us, end_us, arguments)


def step(begin_us: float, end_us: float, number: int = 1) -> Event:
    """An iteration, on thread 1."""
    return annotation(1, begin_us, end_us, f"ProfilerStep#{number}")


def call(
    thread: int, begin_us: float, end_us: float, correlation: int, name: str = "cudaLaunchKernel"
) -> Event:
    """A call of CUDA's runtime."""
    arguments = {"correlation": correlation}
    return _event("cuda_runtime", name, 1, thread, begin_us, end_us, arguments)


def kernel(
    stream: int, begin_us: float, end_us: float, correlation: int, name: str = "gemm"
) -> Event:
    """A kernel on GPU 0."""
    arguments = {"correlation": correlation, "device": 0, "stream": stream}
    return _event("kernel", name, 0, stream, begin_us, end_us, arguments)


def written(path: Path, events: Iterable[Event], **about: object) -> Path:
    """Writes a trace, and returns its path."""
    path.write_text(json.dumps({"schemaVersion": 1, **about, "traceEvents": list(events)}))
    return path


def loaded(folder: Path, *events: Event) -> RankTrace:
    """The tasks of a trace."""
    return load_trace(written(folder / "trace.json", events))


def waits(trace: RankTrace) -> list[tuple[str, str]]:
    """Each task that waits for one of another lane: names and times of both, in microseconds."""
    return [
        (_shown(trace.tasks[other]), _shown(task)) for task in trace.tasks for other in task.waits
    ]


def _shown(task: Task) -> str:
    return f"{task.name} {task.begin_ns // 1000}-{task.end_ns // 1000}"


def _event(
    category: str,
    name: str,
    pid: int,
    tid: int,
    begin_us: float,
    end_us: float,
    arguments: Mapping[str, object] | None = None,
) -> Event:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": begin_us,
        "dur": end_us - begin_us,
        "args": dict(arguments or {}),
    }
