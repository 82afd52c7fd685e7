"""MLCommons Chakra's execution traces: protobuf (``*.et``), or the JSON that its jsonizer prints.

    COMP, MEM_LOAD, MEM_STORE, STORAGE, ...    COMPUTE
    COMM_COLL, COMM_SEND, COMM_RECV            COLLECTIVE, SEND, RECEIVE of ``comm_size`` bytes
    METADATA                                   left out: it takes no time

In a trace of ours, attributes say what Chakra has no fields for (``export_chakra.py``), and all
spans come back. Threads and streams (``tid``, ``stream``) become lanes, where nodes say theirs.

Chakra's converter writes durations and dependencies, but no start times. Where no node has one,
each begins as soon as the nodes that it depends on have ended: what is read then is a schedule, not
what happened.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from byteprophet.errors import UserError
from byteprophet.timeline.chakra_schema import NodeType, attributes, parse_messages, schema
from byteprophet.timeline.events import Events
from byteprophet.timeline.json_traces import parse_json_values, read_bytes
from byteprophet.timeline.span_list import SpanList
from byteprophet.timeline.tables import Kind

OURS = "byteprophet."
"""In front of the names of our attributes."""

_KINDS = {
    NodeType.MEM_LOAD_NODE: Kind.COMPUTE,
    NodeType.MEM_STORE_NODE: Kind.COMPUTE,
    NodeType.COMP_NODE: Kind.COMPUTE,
    NodeType.COMM_SEND_NODE: Kind.SEND,
    NodeType.COMM_RECV_NODE: Kind.RECEIVE,
    NodeType.COMM_COLL_NODE: Kind.COLLECTIVE,
    NodeType.STORAGE_NODE: Kind.COMPUTE,
    NodeType.BATCH_NODE: Kind.COMPUTE,
    NodeType.CHECKPOINT_NODE: Kind.COMPUTE,
}
_RANK_IN_NAME = re.compile(r"\.(\d{1,9})\.(et|json)$")


def read_chakra(path: Path, rank: int = 0) -> Events:
    """The spans in the file; ``rank`` is used if neither it nor its name, ``*.<rank>.et``, says it.

    UserError in one line if it is cut off, of something else, or has nothing in it. A foreign file
    that was cut off between two nodes can be known only by dependencies on nodes that are missing.
    """
    content = read_bytes(path)
    if path.suffix != ".et" and content.lstrip().startswith(b"{"):
        return chakra_events(path, messages_of_json(path, parse_json_values(path, content)), rank)
    return chakra_events(path, list(parse_messages(path, content)), rank)


def is_chakra_json(values: Sequence[Any]) -> bool:
    """Whether the JSON values of a file look like the jsonizer's."""
    return all(isinstance(value, dict) for value in values) and (
        len(values) > 1 or "version" in values[0]
    )


def messages_of_json(path: Path, values: Sequence[Any]) -> list[Any]:
    """The metadata and the nodes that the jsonizer printed as ``values``."""
    from google.protobuf import json_format

    messages: list[Any] = []
    for number, value in enumerate(values):
        message = schema().node() if number else schema().metadata()
        try:
            messages.append(json_format.ParseDict(value, message, ignore_unknown_fields=True))
        except (json_format.ParseError, AttributeError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise UserError(f"{path}: is not a Chakra trace: message {number}: {reason}") from None
    return messages


def chakra_events(path: Path, messages: Sequence[Any], rank: int) -> Events:
    """As ``read_chakra``, of a file's messages, the metadata first."""
    about, nodes = attributes(messages[0]), messages[1:]
    stated = about.get(f"{OURS}nodes", len(nodes))
    if stated != len(nodes):
        raise UserError(f"{path}: is cut off: it has {len(nodes)} of {stated} nodes")
    found = [
        span
        for node, begin_ns in zip(nodes, _begins_ns(path, nodes), strict=True)
        if (span := _span(path, node, attributes(node), begin_ns)) is not None
    ]
    if not found:
        raise UserError(f"{path}: has no nodes that take time")
    spans = SpanList(path)
    for track, kind, name, begin_ns, duration_ns, size_bytes, iteration in sorted(
        found, key=lambda span: span.track
    ):
        spans.add(kind, name, begin_ns, duration_ns, track, size_bytes, iteration)
    named = _RANK_IN_NAME.search(path.name)
    rank = about.get(f"{OURS}rank", int(named[1]) if named else rank)
    if type(rank) is not int or not 0 <= rank < 2**31:
        raise UserError(f"{path}: rank {rank!r}: must be an integer from 0")
    return spans.events(rank)


class _Span(NamedTuple):
    track: tuple[str, int]
    kind: Kind
    name: str
    begin_ns: int
    duration_ns: int
    size_bytes: int
    iteration: int


def _span(path: Path, node: Any, said: Mapping[str, Any], begin_ns: int) -> _Span | None:
    """The span of a node with the attributes ``said``; None where it takes no time."""

    def number(name: str) -> int:
        value = said.get(name, 0)
        if type(value) is not int:
            raise UserError(f"{path}: node {node.id}: {name} {value!r}: must be an integer")
        return value

    size_bytes = number("comm_size")
    if f"{OURS}kind" in said:
        kind = str(said[f"{OURS}kind"])
        if kind not in Kind.__members__:
            raise UserError(f"{path}: node {node.id}: {OURS}kind {kind!r}: is not known")
        begin_ns, duration_ns, lane, iteration = (
            number(f"{OURS}{name}") for name in ("begin_ns", "duration_ns", "lane", "iteration")
        )
        track = ("lane", lane)
        return _Span(track, Kind[kind], node.name, begin_ns, duration_ns, size_bytes, iteration)
    if node.type == NodeType.METADATA_NODE:
        return None
    kind_of_node = _KINDS[NodeType(node.type)]
    thread = next((name for name in ("stream", "tid") if name in said), None)
    track = (thread, number(thread)) if thread else (kind_of_node.name, 0)
    duration_ns = node.duration_micros * 1000
    return _Span(track, kind_of_node, node.name, begin_ns, duration_ns, size_bytes, 0)


def _begins_ns(path: Path, nodes: Sequence[Any]) -> list[int]:
    """When each node begins: as stated or, where nothing is, as its dependencies allow."""
    positions = {node.id: position for position, node in enumerate(nodes)}
    if len(positions) < len(nodes):
        raise UserError(f"{path}: is not a Chakra trace: two nodes have one id")
    followers: list[list[int]] = [[] for _ in nodes]
    waits_for = [0] * len(nodes)
    for position, node in enumerate(nodes):
        if node.type not in _KINDS and node.type != NodeType.METADATA_NODE:
            raise UserError(f"{path}: node {node.id}: type {node.type}: is not known")
        for needed in {*node.data_deps, *node.ctrl_deps}:
            if needed not in positions:
                raise UserError(
                    f"{path}: node {node.id}: depends on node {needed}, which is missing: is the "
                    "file cut off?"
                )
            followers[positions[needed]].append(position)
            waits_for[position] += 1
    if any(node.start_time_micros for node in nodes):
        return [node.start_time_micros * 1000 for node in nodes]
    begins_ns = [0] * len(nodes)
    ready = [position for position, count in enumerate(waits_for) if not count]
    for position in ready:  # grows
        end_ns = begins_ns[position] + nodes[position].duration_micros * 1000
        for follower in followers[position]:
            begins_ns[follower] = max(begins_ns[follower], end_ns)
            waits_for[follower] -= 1
            if not waits_for[follower]:
                ready.append(follower)
    if len(ready) < len(nodes):
        raise UserError(f"{path}: is not a Chakra trace: its nodes depend on one another in a ring")
    return begins_ns
