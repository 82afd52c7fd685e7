"""Reads the graph in a Chakra trace and turns its nodes into spans."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from byteprophet.errors import UserError
from byteprophet.timeline.chakra_schema import OURS, NodeType, attributes
from byteprophet.timeline.events import Events
from byteprophet.timeline.span_list import SpanList
from byteprophet.timeline.tables import Kind

_KINDS: Mapping[int, Kind] = {
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
READ_ATTRIBUTES = (
    *("comm_size", "stream", "tid"),
    *(f"{OURS}{name}" for name in ("rank", "nodes")),
    *(f"{OURS}{name}" for name in ("kind", "begin_ns", "duration_ns", "lane", "iteration")),
)
"""The names of the attributes that we read."""

_RANK_IN_NAME = re.compile(r"\.(\d{1,9})\.(et|json)(\.gz)?$")


class _Span(NamedTuple):
    """A span of a node. ``begin_ns`` None: it begins when its dependencies allow."""

    track: tuple[str, int]
    kind: Kind
    name: str
    begin_ns: int | None
    duration_ns: int
    size_bytes: int
    iteration: int


class _Node(NamedTuple):
    """A node. ``needs``: ids of the nodes that it waits for. ``span`` None: it takes no time."""

    id: int
    needs: tuple[int, ...]
    start_us: int
    duration_us: int
    span: _Span | None


class ChakraGraph:
    """Collects the messages of a file one by one, the metadata first, and returns their spans."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._about: Mapping[str, Any] | None = None
        self._nodes: list[_Node] = []
        self._places: dict[int, int] = {}  # by id

    def add(self, message: Any) -> None:
        """Adds the next message. Raises ``UserError`` if it is not valid."""
        if self._about is None:
            self._about = attributes(message)
            return
        if message.id in self._places:
            raise UserError(f"{self._path}: is not a Chakra trace: two nodes have one id")
        if message.type not in _KINDS and message.type != NodeType.METADATA_NODE:
            raise UserError(f"{self._path}: node {message.id}: type {message.type}: is not known")
        self._places[message.id] = len(self._nodes)
        self._nodes.append(
            _Node(
                message.id,
                tuple({*message.data_deps, *message.ctrl_deps}),
                message.start_time_micros,
                message.duration_micros,
                _span(self._path, message, attributes(message)),
            )
        )

    def events(self, rank: int) -> Events:
        """All spans. ``rank`` is used if neither the trace nor its file name states the rank."""
        about = self._about or {}
        stated = about.get(f"{OURS}nodes", len(self._nodes))
        if stated != len(self._nodes):
            raise UserError(
                f"{self._path}: is cut off: it has {len(self._nodes)} of {stated} nodes"
            )
        found = [
            (span, begin_ns if span.begin_ns is None else span.begin_ns)
            for (_, _, _, _, span), begin_ns in zip(self._nodes, self._begins_ns(), strict=True)
            if span is not None
        ]
        if not found:
            raise UserError(f"{self._path}: has no nodes that take time")
        spans = SpanList(self._path)
        for span, begin_ns in sorted(found, key=lambda one: one[0].track):
            track, kind, name, _, duration_ns, size_bytes, iteration = span
            spans.add(kind, name, begin_ns, duration_ns, track, size_bytes, iteration)
        return spans.events(stated_rank(self._path, about, rank))

    def _begins_ns(self) -> Sequence[int]:
        """When each node begins: as stated or, if no node states it, as dependencies allow."""
        nodes, places = self._nodes, self._places
        followers: list[list[int]] = [[] for _ in nodes]
        waits_for = [len(node.needs) for node in nodes]
        for place, node in enumerate(nodes):
            for needed in node.needs:
                if needed not in places:
                    raise UserError(
                        f"{self._path}: node {node.id}: depends on node {needed}, which is "
                        "missing: is the file cut off?"
                    )
                followers[places[needed]].append(place)
        if any(node.start_us for node in nodes):
            return [node.start_us * 1000 for node in nodes]
        begins_ns = [0] * len(nodes)
        ready = [place for place, count in enumerate(waits_for) if not count]
        for place in ready:  # the list grows during the loop
            end_ns = begins_ns[place] + nodes[place].duration_us * 1000
            for follower in followers[place]:
                begins_ns[follower] = max(begins_ns[follower], end_ns)
                waits_for[follower] -= 1
                if not waits_for[follower]:
                    ready.append(follower)
        if len(ready) < len(nodes):
            raise UserError(
                f"{self._path}: is not a Chakra trace: its nodes depend on one another in a ring"
            )
        return begins_ns


def stated_rank(path: Path, about: Mapping[str, Any], rank: int) -> int:
    """The rank in the metadata ``about``, else that in the file's name, else ``rank``."""
    named = _RANK_IN_NAME.search(path.name)
    rank = about.get(f"{OURS}rank", int(named[1]) if named else rank)
    if type(rank) is not int or not 0 <= rank < 2**31:
        raise UserError(f"{path}: rank {reprlib.repr(rank)}: must be an integer from 0")
    return rank


def _span(path: Path, node: Any, said: Mapping[str, Any]) -> _Span | None:
    """The span of a node with the attributes ``said``; None if it takes no time."""

    def number(name: str) -> int:
        value = said.get(name, 0)
        if type(value) is not int:
            raise UserError(
                f"{path}: node {node.id}: {name} {reprlib.repr(value)}: must be an integer"
            )
        return value

    size_bytes = number("comm_size")
    if f"{OURS}kind" in said:
        kind = str(said[f"{OURS}kind"])
        if kind not in Kind.__members__:
            shown = reprlib.repr(kind)
            raise UserError(f"{path}: node {node.id}: {OURS}kind {shown}: is not known")
        begin_ns, duration_ns, lane, iteration = (
            number(f"{OURS}{name}") for name in ("begin_ns", "duration_ns", "lane", "iteration")
        )
        track = ("lane", lane)
        return _Span(track, Kind[kind], node.name, begin_ns, duration_ns, size_bytes, iteration)
    if node.type == NodeType.METADATA_NODE:
        return None
    kind_of_node = _KINDS[node.type]
    thread = next((name for name in ("stream", "tid") if name in said), None)
    track = (thread, number(thread)) if thread else (kind_of_node.name, 0)
    duration_ns = node.duration_micros * 1000
    return _Span(track, kind_of_node, node.name, None, duration_ns, size_bytes, 0)
