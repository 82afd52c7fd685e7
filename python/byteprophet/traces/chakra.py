"""Reads MLCommons Chakra's execution traces (protobuf, ``*.et``) as tasks.

A node needs those on which it depends. Nodes have no order beyond that: nothing is known of the
threads and streams that they share, unless dependencies say so. Traces that we wrote
(``write_chakra.py``) have their lanes, iterations and nanoseconds. In others, the whole trace is
one iteration. Nodes of timelines (``timeline/export_chakra.py``) contain one another: in a replay,
each takes its time without those within it, which wait for it. Converters of Chakra write
durations, but often no times at which nodes began; then there is nothing to compare a replay with.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from pathlib import Path
from typing import Any, NamedTuple

from byteprophet.errors import UserError
from byteprophet.timeline.chakra_graph import stated_rank
from byteprophet.timeline.chakra_schema import OURS, NodeType, attributes, parse_messages
from byteprophet.traces.messages import Message
from byteprophet.traces.work import Lane, RankTrace, Step, Task, Use

COLLECTIVES = (
    "all-reduce",
    "reduce",
    "all-gather",
    "gather",
    "scatter",
    "broadcast",
    "all-to-all",
    "reduce-scatter",
    "reduce-scatter",  # REDUCE_SCATTER_BLOCK
    "barrier",
)
"""Kinds by the numbers of ``comm_type``."""

_COMMUNICATION = {
    NodeType.COMM_COLL_NODE: "",
    NodeType.COMM_SEND_NODE: "send",
    NodeType.COMM_RECV_NODE: "receive",
}
_MEMORY = (NodeType.MEM_LOAD_NODE, NodeType.MEM_STORE_NODE, NodeType.STORAGE_NODE)
_LATEST_US = 2**52
_LONGEST_US = 2**60 // 1000
"""The longest replay of the engine. Begins may be later: some traces have the wall clock's time."""


class _Node(NamedTuple):
    """A node, and its task, which does not know yet what it needs."""

    id: int
    deps: tuple[int, ...]
    task: Task
    mark: int | None


def read_chakra_trace(path: Path, content: bytes, rank: int) -> RankTrace:
    """The tasks of a rank. ``rank`` is used if neither the file nor its name has one.

    Raises ``UserError``, with one line, if the file is damaged or its nodes wait for each other.
    """
    messages = parse_messages(path, content)
    about = attributes(next(messages, None)) if content else {}
    lanes: dict[tuple[str, int], int] = {}
    nodes = [_node(path, message, lanes) for message in messages]
    if about.get(f"{OURS}nodes", len(nodes)) != len(nodes):
        raise UserError(f"{path}: is cut off: it has {len(nodes)} of {about[f'{OURS}nodes']} nodes")
    if not any(node.task.duration_ns for node in nodes):
        raise UserError(f"{path}: has no nodes that take time")
    stated = stated_rank(path, about, rank)
    if stated >= 2**15:
        raise UserError(f"{path}: rank {stated}: must be an integer from 0 to 32767")
    ordered, has_times = _ordered(path, nodes)
    world_size = about.get(f"{OURS}world_size", 0)
    marks = [(at, node.mark) for at, node in enumerate(ordered) if node.mark is not None]
    tasks = [node.task for node in ordered]
    begins = {number: at for at, number in marks if tasks[at].name.endswith(" begin")}
    ends = {number: at for at, number in marks if tasks[at].name.endswith(" end")}
    steps = [Step(n, begins[n], ends[n]) for n in sorted(begins.keys() & ends.keys())]
    return RankTrace(
        path,
        stated,
        world_size if type(world_size) is int and world_size > 0 else 0,
        tuple(Lane(_lane_name(*lane), lane[0] == "stream") for lane in lanes),
        *(_as_steps(tasks, steps) if steps else _as_one_step(tasks)),
        has_times=has_times,
    )


def _as_steps(tasks: list[Task], steps: list[Step]) -> tuple[tuple[Task, ...], tuple[Step, ...]]:
    return tuple(tasks), tuple(steps)


def _as_one_step(tasks: list[Task]) -> tuple[tuple[Task, ...], tuple[Step, ...]]:
    """The whole trace as step 0, with marks around all tasks."""
    begin_ns = min(task.begin_ns for task in tasks)
    end_ns = max(task.end_ns for task in tasks)
    for task in tasks:
        task.needs = [need + 1 for need in task.needs] or [0]
        task.step = 0
    begin = Task(Use.MARK, "trace begin", -1, begin_ns, begin_ns, 0, step=0)
    end = Task(Use.MARK, "trace end", -1, end_ns, end_ns, 0, step=0)
    end.needs = list(range(1, len(tasks) + 1))
    return (begin, *tasks, end), (Step(0, 0, len(tasks) + 1),)


def _node(path: Path, message: Any, lanes: dict[tuple[str, int], int]) -> _Node:
    said = attributes(message)

    def number(name: str, default: int = 0) -> int:
        value = said.get(name, default)
        if type(value) is not int or not 0 <= value < 2**62:
            raise UserError(f"{path}: node {message.id}: {name}: must be an integer from 0")
        return value

    if message.start_time_micros > _LATEST_US or message.duration_micros > _LONGEST_US:
        raise UserError(f"{path}: node {message.id}: its times are too large")
    recorded_ns = number(f"{OURS}duration_ns", message.duration_micros * 1000)
    is_of_timeline = f"{OURS}use" not in said  # its nodes' microseconds exclude contained nodes
    duration_ns = message.duration_micros * 1000 if is_of_timeline else recorded_ns
    begin_ns = number(f"{OURS}begin_ns", message.start_time_micros * 1000)
    if message.type == NodeType.METADATA_NODE:
        recorded_ns = duration_ns = 0
    lane = -1
    for kind in ("stream", "tid"):
        if kind in said:
            lane = lanes.setdefault((kind, number(kind)), len(lanes))
            break
    mark = number(f"{OURS}mark") if f"{OURS}mark" in said else None
    task = Task(
        _use(message, said),
        message.name or "(no name)",
        lane,
        begin_ns,
        begin_ns + recorded_ns,
        duration_ns,
        step=number(f"{OURS}step") if f"{OURS}step" in said else -1,
        message=_message(message, said, number),
        released=said.get(f"{OURS}released") is True,
        is_earlier=said.get(f"{OURS}earlier") is True,
    )
    return _Node(message.id, (*message.data_deps, *message.ctrl_deps), task, mark)


def _use(message: Any, said: Mapping[str, Any]) -> Use:
    stated = said.get(f"{OURS}use")
    if stated in {use.value for use in Use}:
        return Use(stated)
    if message.type == NodeType.METADATA_NODE:
        return Use.MARK
    if message.type in _COMMUNICATION:
        return Use.COLLECTIVE
    if message.type in _MEMORY:
        return Use.COPY
    return Use.HOST if said.get("is_cpu_op", True) and "stream" not in said else Use.KERNEL


def _message(message: Any, said: Mapping[str, Any], number: Any) -> Message | None:
    kind = _COMMUNICATION.get(message.type)
    if kind is None:
        return None
    peers = None
    if kind:
        if "comm_src" in said and "comm_dst" in said:
            peers = number("comm_src"), number("comm_dst")
    else:
        type_number = number("comm_type")
        kind = COLLECTIVES[type_number] if type_number < len(COLLECTIVES) else ""
    group, members = said.get("pg_name", ""), said.get(f"{OURS}members", "")
    return Message(
        kind,
        number("comm_size"),
        group if isinstance(group, str) else "",
        number(f"{OURS}ranks"),
        members if isinstance(members, str) else "",
        peers,
    )


def _ordered(path: Path, nodes: list[_Node]) -> tuple[list[_Node], bool]:
    """The nodes by their begin, but each behind what it needs; and whether they have times.

    Without times, each task begins as soon as it can.
    """
    places = {node.id: place for place, node in enumerate(nodes)}
    if len(places) < len(nodes):
        raise UserError(f"{path}: is not a Chakra trace: two nodes have one id")
    has_times = any(node.task.begin_ns for node in nodes)
    followers: list[list[int]] = [[] for _ in nodes]
    missing = [0] * len(nodes)
    for place, node in enumerate(nodes):
        for need in set(node.deps):
            if need not in places:
                raise UserError(
                    f"{path}: node {node.id}: depends on node {need}, which is missing: is the "
                    "file cut off?"
                )
            followers[places[need]].append(place)
            missing[place] += 1
    free = [(nodes[place].task.begin_ns, place) for place, count in enumerate(missing) if not count]
    heapify(free)
    order: list[int] = []
    position: dict[int, int] = {}
    while free:
        _, place = heappop(free)
        position[place] = len(order)
        order.append(place)
        node = nodes[place]
        node.task.needs = sorted(position[places[need]] for need in set(node.deps))
        if not has_times:
            begins = (nodes[places[need]].task.end_ns for need in node.deps)
            node.task.begin_ns = max(begins, default=0)
            node.task.end_ns = node.task.begin_ns + node.task.duration_ns
        for follower in followers[place]:
            missing[follower] -= 1
            if not missing[follower]:
                heappush(free, (nodes[follower].task.begin_ns, follower))
    if len(order) < len(nodes):
        raise UserError(f"{path}: is not a Chakra trace: its nodes depend on one another in a ring")
    return [nodes[place] for place in order], has_times


def _lane_name(kind: str, number: int) -> str:
    return f"stream {number}" if kind == "stream" else f"thread {number}"
