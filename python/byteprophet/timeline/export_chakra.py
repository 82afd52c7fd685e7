"""Writes a timeline as MLCommons Chakra's execution traces, a file ``NAME.<rank>.et`` per worker.

    FORWARD, BACKWARD, UPDATE, COMPUTE    COMP
    COLLECTIVE                            COMM_COLL
    SEND, pushes; RECEIVE, pulls          COMM_SEND, COMM_RECV with ``comm_size``
    ITERATION, WAIT                       METADATA, because no work is done

``data_deps`` are the nodes that a node waited for (``chakra_nodes.py``); ``ctrl_deps`` is the node
that contains it. ``duration_micros`` excludes contained nodes, as in Chakra's own converter. The
node before a contained one is among its ``data_deps``, so times along a path add up. The peers of
pushes and pulls (``comm_src``, ``comm_dst``) are numbered, first workers, then servers.

Attributes that begin with ``byteprophet.`` hold data without a field in Chakra: nanoseconds, kinds,
lanes and iterations. In the metadata, they hold the rank and the number of nodes; the latter
reveals files that were cut off.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from byteprophet.errors import UserError
from byteprophet.timeline.chakra_nodes import GraphNode, nodes_of_worker
from byteprophet.timeline.chakra_schema import OURS, NodeType, attribute, schema, write_message
from byteprophet.timeline.clocks import Clock, on_one_clock, wall_clock
from byteprophet.timeline.events import Events
from byteprophet.timeline.tables import SPANS, TRANSFERS, Kind
from byteprophet.whole_files import whole_file

VERSION = "0.0.4"
"""The version of Chakra's schema."""

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
    """Writes a file per worker, ``<name>.<rank>.et``, all or none, and returns their paths.

    ``clock`` converts the roles' times to one clock; the default is their machines' wall clocks.
    Raises ``UserError`` if nothing was recorded at any worker.
    """
    events = on_one_clock(events, clock or wall_clock(events))
    by_rank: dict[int, list[Events]] = {}
    for table in events:
        if table.table in (TRANSFERS, SPANS) and table.origin.role.startswith("worker"):
            by_rank.setdefault(table.origin.rank, []).append(table)
    nodes = {rank: nodes_of_worker(tables) for rank, tables in sorted(by_rank.items())}
    if not any(nodes.values()):
        raise UserError(f"{name}.*.et: not written: nothing was recorded of a worker")
    if any(node.begin_ns < 0 for of_rank in nodes.values() for node in of_rank):
        raise UserError(f"{name}.*.et: not written: by its wall clock, a worker ran before 1970")
    paths = []
    with ExitStack() as all_or_none:
        for rank, of_rank in nodes.items():
            paths.append(name.with_name(f"{name.name}.{rank}.et"))
            with all_or_none.enter_context(whole_file(paths[-1])).open("wb") as file:
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
