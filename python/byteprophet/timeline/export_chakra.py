"""A timeline as MLCommons Chakra's execution traces: one file per worker, ``NAME.<rank>.et``.

    FORWARD, BACKWARD, UPDATE, COMPUTE    COMP
    COLLECTIVE                            COMM_COLL
    SEND, pushes; RECEIVE, pulls          COMM_SEND, COMM_RECV with ``comm_size``
    ITERATION, WAIT                       METADATA: nothing is done in it

``data_deps`` are what a node waited for (``chakra_nodes.py``), ``ctrl_deps`` what it is part of.
``duration_micros`` leaves the nodes in it out, as Chakra's own converter does: times along a path
add up. Peers of pushes and pulls (``comm_src``, ``comm_dst``) are numbered workers first, then
servers.

Attributes that begin with ``byteprophet.`` hold what Chakra has no fields for: nanoseconds, kinds,
lanes, iterations, and in the metadata the number of nodes, by which a file that was cut off is
known.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from byteprophet.errors import UserError
from byteprophet.timeline.chakra_nodes import GraphNode, nodes_of_worker
from byteprophet.timeline.chakra_schema import NodeType, attribute, schema, write_message
from byteprophet.timeline.clocks import Clock, on_one_clock, wall_clock
from byteprophet.timeline.events import Events
from byteprophet.timeline.read_chakra import OURS
from byteprophet.timeline.tables import SPANS, TRANSFERS, Kind
from byteprophet.whole_files import whole_file

VERSION = "0.0.4"
"""Of Chakra's schema."""

_TYPES = {
    Kind.ITERATION: NodeType.METADATA_NODE,
    Kind.FORWARD: NodeType.COMP_NODE,
    Kind.BACKWARD: NodeType.COMP_NODE,
    Kind.UPDATE: NodeType.COMP_NODE,
    Kind.WAIT: NodeType.METADATA_NODE,
    Kind.COMPUTE: NodeType.COMP_NODE,
    Kind.COLLECTIVE: NodeType.COMM_COLL_NODE,
    Kind.SEND: NodeType.COMM_SEND_NODE,
    Kind.RECEIVE: NodeType.COMM_RECV_NODE,
}
_COMMUNICATION = (Kind.COLLECTIVE, Kind.SEND, Kind.RECEIVE)
_COLLECTIVES = {"allgather": 2, "broadcast": 5, "alltoall": 6, "reducescatter": 7, "barrier": 9}
_ALL_REDUCE = 0


def write_chakra(name: Path, events: Sequence[Events], clock: Clock | None = None) -> list[Path]:
    """Write a file per worker, ``<name>.<rank>.et``; their paths.

    ``clock`` brings the roles' times onto one clock; without it, that is their machines' wall
    clocks. UserError if nothing was recorded of any worker.
    """
    events = on_one_clock(events, clock or wall_clock(events))
    by_rank: dict[int, list[Events]] = {}
    for table in events:
        if table.table in (TRANSFERS, SPANS) and table.origin.role.startswith("worker"):
            by_rank.setdefault(table.origin.rank, []).append(table)
    nodes = {rank: nodes_of_worker(tables) for rank, tables in sorted(by_rank.items())}
    if not any(nodes.values()):
        raise UserError(f"{name}.*.et: not written: nothing was recorded of a worker")
    paths = []
    for rank, of_rank in nodes.items():
        paths.append(name.with_name(f"{name.name}.{rank}.et"))
        with whole_file(paths[-1]) as partial, partial.open("wb") as file:
            metadata = schema().metadata(version=VERSION)
            metadata.attr.append(attribute(f"{OURS}rank", rank))
            metadata.attr.append(attribute(f"{OURS}nodes", len(of_rank)))
            write_message(file, metadata)
            for number, node in enumerate(of_rank):
                write_message(file, _message(number, node, rank, max(nodes) + 1))
    return paths


def _message(number: int, node: GraphNode, rank: int, workers: int) -> Any:
    said: dict[str, str | int | bool] = {
        f"{OURS}kind": node.kind.name,
        f"{OURS}begin_ns": node.begin_ns,
        f"{OURS}duration_ns": node.end_ns - node.begin_ns,
        f"{OURS}lane": node.lane,
        f"{OURS}iteration": node.iteration,
        "is_cpu_op": node.kind not in _COMMUNICATION,
    }
    if node.size_bytes or node.kind in _COMMUNICATION:
        said["comm_size"] = node.size_bytes
    if node.kind is Kind.COLLECTIVE:
        letters = "".join(letter for letter in node.name.lower() if letter.isalpha())
        types = (number for word, number in _COLLECTIVES.items() if word in letters)
        said["comm_type"] = next(types, _ALL_REDUCE)
    if node.server is not None and node.key is not None:
        ends = (rank, workers + node.server)
        said["comm_src"], said["comm_dst"] = ends if node.kind is Kind.SEND else ends[::-1]
        said["comm_tag"] = node.key
    message = schema().node(
        id=number,
        name=node.name,
        type=_TYPES[node.kind],
        ctrl_deps=[] if node.parent is None else [node.parent],
        data_deps=node.waits_for,
        start_time_micros=node.begin_ns // 1000,
        duration_micros=max(0, node.own_ns + 500) // 1000,
    )
    message.attr.extend(attribute(name, value) for name, value in said.items())
    return message
