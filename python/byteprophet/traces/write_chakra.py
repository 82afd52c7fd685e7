"""Writes a replay as MLCommons Chakra's execution traces, ``NAME.<rank>.et`` for each rank.

    kernels, operators, Python, launches    COMP
    copies                                  MEM_LOAD
    collectives                             COMM_COLL with ``comm_type``, ``comm_size``, ``pg_name``
    point-to-point messages                 COMM_SEND, COMM_RECV
    begin and end of an iteration           METADATA

``data_deps`` are all tasks that a task needed and waited for. Durations are those of the replay; a
collective has the time that it takes once all ranks have arrived. Attributes that begin with
``byteprophet.`` hold nanoseconds, iterations, and the use of a task.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

from byteprophet.timeline.chakra_schema import OURS, NodeType, attribute, schema, write_message
from byteprophet.timeline.export_chakra import VERSION
from byteprophet.timeline.span_list import valid_text
from byteprophet.timeline.tables import Kind
from byteprophet.traces.chakra import COLLECTIVES
from byteprophet.traces.result import TraceReplay
from byteprophet.traces.work import RankTrace, Task, Use
from byteprophet.whole_files import whole_file

_ON_HOST = (Use.OPERATOR, Use.HOST, Use.LOADING, Use.LAUNCH, Use.MARK)


def write_chakra_traces(name: Path, result: TraceReplay) -> list[Path]:
    """Writes one file per rank, all or none of them, and returns their paths."""
    paths = []
    with ExitStack() as all_or_none:
        for index, trace in enumerate(result.built.traces):
            paths.append(name.with_name(f"{name.name}.{trace.rank}.et"))
            with all_or_none.enter_context(whole_file(paths[-1])).open("wb") as file:
                _write(file, result, index)
    return paths


def _write(file: BinaryIO, result: TraceReplay, index: int) -> None:
    trace = result.built.traces[index]
    durations_ns = result.durations_ns(index).tolist()
    # A collective begins when the last rank has arrived.
    begins_ns = (result.ends_ns(index) - result.durations_ns(index)).tolist()
    metadata = schema().metadata(version=VERSION)
    about = {"rank": trace.rank, "nodes": len(trace.tasks), "world_size": trace.world_size}
    metadata.attr.extend(attribute(f"{OURS}{key}", said) for key, said in about.items())
    write_message(file, metadata)
    marks = {place: step.number for step in trace.steps for place in (step.begin, step.end)}
    for place, task in enumerate(trace.tasks):
        node = _node(place, trace, task, begins_ns[place], durations_ns[place])
        if place in marks:
            node.attr.append(attribute(f"{OURS}mark", marks[place]))
        write_message(file, node)


def _node(number: int, trace: RankTrace, task: Task, begin_ns: int, duration_ns: int) -> Any:
    said: dict[str, str | int | bool] = {
        f"{OURS}use": task.use.value,
        f"{OURS}kind": _kind(task).name,
        f"{OURS}begin_ns": begin_ns,
        f"{OURS}duration_ns": duration_ns,
        f"{OURS}lane": task.lane if task.lane >= 0 else len(trace.lanes),
        f"{OURS}iteration": max(0, task.step),
        "is_cpu_op": task.use in _ON_HOST,
    }
    if task.step >= 0:
        said[f"{OURS}step"] = task.step
    if task.released:
        said[f"{OURS}released"] = True
    if task.is_earlier:
        said[f"{OURS}earlier"] = True
    if task.lane >= 0:
        said["stream" if trace.lanes[task.lane].is_stream else "tid"] = task.lane
    message = task.message
    if message is not None:
        said["comm_size"] = message.size_bytes
        said["pg_name"] = valid_text(message.group)
        said[f"{OURS}ranks"] = message.ranks
        said[f"{OURS}members"] = valid_text(message.members)
        if message.peers is not None:
            said["comm_src"], said["comm_dst"] = message.peers
        elif message.kind in COLLECTIVES:
            said["comm_type"] = COLLECTIVES.index(message.kind)
        elif not message.is_between_two:
            said["comm_type"] = len(COLLECTIVES)
    node = schema().node(
        id=number,
        name=valid_text(task.name),
        type=_type(task),
        data_deps=[*task.needs, *task.waits],
        start_time_micros=begin_ns // 1000,
        duration_micros=(duration_ns + 500) // 1000,
    )
    node.attr.extend(attribute(name, value) for name, value in said.items())
    return node


def _type(task: Task) -> NodeType:
    if task.use is Use.MARK:
        return NodeType.METADATA_NODE
    if task.use is Use.COPY:
        return NodeType.MEM_LOAD_NODE
    if task.message is None:
        return NodeType.COMP_NODE
    if not task.message.is_between_two:
        return NodeType.COMM_COLL_NODE
    is_send = task.message.kind == "send"
    return NodeType.COMM_SEND_NODE if is_send else NodeType.COMM_RECV_NODE


def _kind(task: Task) -> Kind:
    """The kind of the span, for ``byteprophet timeline``."""
    if task.use is Use.MARK:
        return Kind.WAIT
    if task.message is None:
        return Kind.COMPUTE
    if not task.message.is_between_two:
        return Kind.COLLECTIVE
    return Kind.SEND if task.message.kind == "send" else Kind.RECEIVE
