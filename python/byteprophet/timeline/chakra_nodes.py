"""Turns a worker's events into nodes of a graph, with kind, time and dependencies.

Spans keep the order of their lane: each span is a child of the span that contains it, and waits for
the span that began before it on the lane, at any depth. That is how Chakra's own converter orders
a thread: the time of a span without its children comes first, then the children one by one. So the
times along a lane add up, and what follows a span waits for the last span within it.

Every transfer becomes a push and a pull that waits for the push. If names and iterations match, a
push waits for the backward pass of its layer, the update of a parameter waits for its pull, and the
layer's next forward pass waits for the update. A span is named after a layer or one of its
parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from byteprophet.timeline.events import Events
from byteprophet.timeline.lanes import disjoint_lanes
from byteprophet.timeline.tables import SPANS, TRANSFERS, Kind, tensor_of

_NO_WORK = (Kind.ITERATION, Kind.WAIT)


@dataclass
class GraphNode:
    """One node. ``waits_for`` and ``parent`` are indices in the list that contains the node.

    ``own_ns``: duration without contained nodes. ``server``, ``key``: None except for transfers.
    """

    kind: Kind
    name: str
    begin_ns: int
    end_ns: int
    size_bytes: int
    iteration: int
    lane: int
    server: int | None = None
    key: int | None = None
    own_ns: int = 0
    parent: int | None = None
    waits_for: list[int] = field(default_factory=list)


def nodes_of_worker(tables: Sequence[Events]) -> list[GraphNode]:
    """The nodes of one worker's tables of spans and transfers, in order of their start.

    No node waits for a later one in the list. Transfers without known times are left out.
    """
    nodes: list[GraphNode] = []
    pushes: list[tuple[GraphNode, GraphNode | None, str]] = []
    for table in tables:
        first_lane = max((node.lane for node in nodes), default=-1) + 1
        if table.table is SPANS:
            nodes += _spans(table, first_lane)
        elif table.table is TRANSFERS:
            found = _transfers(table, first_lane)
            pushes += found
            nodes += [node for push, pull, _ in found for node in (push, pull) if node]
    # Nodes of zero duration come first, because others may wait for them. Then a node comes before
    # the nodes that it contains.
    nodes.sort(key=lambda n: (n.begin_ns, n.end_ns > n.begin_ns, -n.end_ns, n.lane))
    _along_lanes(nodes)
    places = {id(node): place for place, node in enumerate(nodes)}
    _around_transfers(nodes, places, pushes)
    return nodes


def _spans(table: Events, first_lane: int) -> list[GraphNode]:
    return [
        GraphNode(
            Kind(kind), table.names.get(name, "?"), begin, end, size, iteration, first_lane + lane
        )
        for begin, end, size, iteration, name, lane, kind, _ in table.rows.tolist()
    ]


def _transfers(table: Events, first_lane: int) -> list[tuple[GraphNode, GraphNode | None, str]]:
    """For each transfer: the push, the pull (None if not known) and the tensor's name."""
    rows = table.rows[(table.rows["sent_ns"] != 0) & (table.rows["acked_ns"] != 0)]
    push_lanes = first_lane + disjoint_lanes(rows["sent_ns"], rows["acked_ns"])
    first_lane = int(push_lanes.max(initial=first_lane - 1)) + 1
    pull_lanes = first_lane + disjoint_lanes(
        rows["acked_ns"], np.maximum(rows["acked_ns"], rows["pulled_ns"])
    )
    columns = ("key", "size_bytes", "iteration", "server", "sent_ns", "acked_ns", "pulled_ns")
    values = [rows[name].tolist() for name in columns]
    values += [tensor_of(rows).tolist(), push_lanes.tolist(), pull_lanes.tolist()]
    found = []
    for key, size, iteration, server, sent, acked, pulled, number, *lanes in zip(
        *values, strict=True
    ):
        tensor = table.names.get(number) or f"tensor {number}"
        name = f"{tensor} [{key & 0xFFFF}]"
        push, pull = (
            GraphNode(kind, name, begin, end, size, iteration, lane, server, key)
            for kind, begin, end, lane in (
                (Kind.SEND, sent, acked, lanes[0]),
                (Kind.RECEIVE, acked, pulled, lanes[1]),
            )
        )
        found.append((push, pull if pulled else None, tensor))
    return found


def _along_lanes(nodes: Sequence[GraphNode]) -> None:
    """Sets each span's parent, its own time, and its dependency on the previous span."""
    around: dict[int, list[int]] = {}  # by lane, the open spans, the innermost last
    before: dict[int, int] = {}  # by lane, the latest span
    for place, node in enumerate(nodes):
        node.own_ns = node.end_ns - node.begin_ns
        if node.kind in _NO_WORK or node.key is not None:
            continue
        open_here = around.setdefault(node.lane, [])
        while open_here and nodes[open_here[-1]].end_ns <= node.begin_ns:
            open_here.pop()
        if open_here:
            node.parent = open_here[-1]
            nodes[node.parent].own_ns -= node.own_ns
        if node.lane in before:
            node.waits_for.append(before[node.lane])
        before[node.lane] = place
        open_here.append(place)


def _around_transfers(
    nodes: Sequence[GraphNode],
    places: Mapping[int, int],
    pushes: Sequence[tuple[GraphNode, GraphNode | None, str]],
) -> None:
    """Adds the dependencies from backward pass to push, pull, update and next forward pass."""
    computed: dict[tuple[Kind, str, int], int] = {}
    for place, node in enumerate(nodes):
        if node.key is None:
            computed[node.kind, node.name, node.iteration] = place
    last = _last_within(nodes)

    def wait(later: int | None, earlier: int | None) -> None:
        if later is None or earlier is None or last[earlier] in nodes[later].waits_for:
            return
        if earlier < later and nodes[earlier].end_ns <= nodes[later].begin_ns:
            nodes[later].waits_for.append(last[earlier])

    for push, pull, tensor in pushes:
        layer, iteration = tensor.rpartition(".")[0], push.iteration
        pushed, pulled = places[id(push)], places.get(id(pull))
        updated = computed.get((Kind.UPDATE, tensor, iteration))
        wait(pulled, pushed)
        wait(updated, pulled)
        for name in (tensor, layer):
            wait(pushed, computed.get((Kind.BACKWARD, name, iteration)))
            next_forward = computed.get((Kind.FORWARD, name, iteration + 1))
            wait(next_forward, pulled if updated is None else updated)


def _last_within(nodes: Sequence[GraphNode]) -> list[int]:
    """For each node, the last one that it contains, at any depth; itself if it contains none."""
    last = list(range(len(nodes)))
    for place in reversed(last.copy()):
        parent = nodes[place].parent
        if parent is not None:
            last[parent] = max(last[parent], last[place])
    return last
