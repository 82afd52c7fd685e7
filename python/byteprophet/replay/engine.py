"""Replays a graph on the core's engine (prophet/graph/graph.h has the model)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from byteprophet import _core
from byteprophet.errors import UserError
from byteprophet.graph.model import (
    WHOLE,
    Connection,
    Graph,
    Int32Array,
    Int64Array,
    SerialDevice,
)

_T = TypeVar("_T")
_Columns = dict[str, tuple[npt.NDArray[Any], type[np.generic]]]


@dataclass(frozen=True, eq=False)
class Replayed:
    """The result of a replay. Times are virtual nanoseconds from 0.

    Attributes:
        graph: the graph that was replayed.
        ready_ns: when each operation was ready, shape (operations,).
        start_ns: when it started, (operations,).
        end_ns: when it ended, (operations,).
        held_by: the operation that delayed each operation after it was ready, (operations,). It is
            the previous operation on the device, or the one whose acknowledgement made the policy
            send. It is -1 if there was no delay, or the policy waited for no operation.
        sent_ns: when policies sent, (gated,).
        device_busy_ns: the busy time of each device, summed over its units, (devices,).
        device_bytes: the bytes of its operations, (devices,).
        link_busy_ns: the time in which each link had a flow in flight, (links,).
        link_bytes: the bytes that it carried, (links,).
        peak_bytes: the largest use of each memory pool, (pools,).
        makespan_ns: the end of the last operation.
    """

    graph: Graph
    ready_ns: Int64Array
    start_ns: Int64Array
    end_ns: Int64Array
    held_by: Int32Array
    sent_ns: Int64Array
    device_busy_ns: Int64Array
    device_bytes: Int64Array
    link_busy_ns: Int64Array
    link_bytes: Int64Array
    peak_bytes: Int64Array
    makespan_ns: int

    def critical_path(self) -> Int32Array:
        """The chain of operations up to the last end, each of which waited for the previous one.

        An operation waited for ``held_by`` if there is one, else for its latest dependency.
        """
        path: Int32Array = _core.critical_path(
            first_successor=self.graph.first_successor,
            successor=self.graph.successor,
            latency_ns=self.graph.latency_ns,
            ready_ns=self.ready_ns,
            end_ns=self.end_ns,
            held_by=self.held_by,
        )
        return path


def replay(graph: Graph) -> Replayed:
    """Run ``graph`` on virtual time. Raises ``UserError`` if it is invalid or never ends."""
    arrays = _arrays(graph)
    gates = [(gate.policy, dict(gate.settings), list(gate.ready_times)) for gate in graph.gates]
    return Replayed(graph, **_naming(graph, lambda: _core.replay(arrays, gates)))


def part(graph: Graph, wanted: npt.ArrayLike) -> Graph:
    """The graph of the operations ``wanted`` and of all operations that they need.

    These are the operations on which they depend, those that acknowledge gated operations, and
    those that mark iterations of their gates. A replay gives the same times as for the whole graph
    if no other operation there uses the same devices, links, overlap groups and gates.
    """
    chosen = np.unique(np.asarray(wanted, dtype=np.int32))
    return graph.select(_naming(graph, lambda: _core.graph_closure(_arrays(graph), chosen)))


def _naming(graph: Graph, do: Callable[[], _T]) -> _T:
    """Return ``do()``. Converts the core's ``ValueError`` to ``UserError`` with a label."""
    try:
        return do()
    except ValueError as error:
        text = str(error.args[0])
        operation = error.args[1] if len(error.args) > 1 else -1
        if operation >= 0 and (label := graph.labels.describe(operation)):
            text += f" (operation {operation} is {label!r})"
        raise UserError(text) from None


def _arrays(graph: Graph) -> dict[str, Any]:
    """The arguments of the core. It gets arrays without conversion, so types are checked here."""
    gated, memory = graph.gated, graph.memory
    columns: _Columns = {
        "duration_ns": (graph.duration_ns, np.int64),
        "size_bytes": (graph.size_bytes, np.int64),
        "device": (graph.device, np.int32),
        "latency_ns": (graph.latency_ns, np.int64),
        "priority": (graph.priority, np.int32),
        "release_ns": (graph.release_ns, np.int64),
        "first_successor": (graph.first_successor, np.int64),
        "successor": (graph.successor, np.int32),
        "memory_pool": (memory.pool, np.int32),
        "allocated_bytes": (memory.allocated_bytes, np.int64),
        "freed_bytes": (memory.freed_bytes, np.int64),
        "gated_operation": (gated.operation, np.int32),
        "gated_gate": (gated.gate, np.int32),
        "gated_key": (gated.key, np.uint64),
        "gated_server": (gated.server, np.uint32),
        "gated_priority": (gated.priority, np.int32),
        "gated_acked_by": (gated.acked_by, np.int32),
        "mark_operation": (graph.marks.operation, np.int32),
        "mark_gate": (graph.marks.gate, np.int32),
    }
    for name, (column, dtype) in columns.items():
        if column.dtype != dtype or column.ndim != 1 or not column.flags.c_contiguous:
            raise UserError(
                f"graph: {name} must be a one-dimensional contiguous array of "
                f"{dtype.__name__}, got {column.dtype} of shape {column.shape}"
            )
    return {name: column for name, (column, _) in columns.items()} | _tables(graph)


def _weights(device: Connection) -> tuple[int, ...]:
    """The weight of each link of a route."""
    if device.weights and len(device.weights) != len(device.route):
        raise UserError(
            f"graph: connection {device.name!r} has {len(device.weights)} weights for "
            f"{len(device.route)} links"
        )
    return device.weights or (WHOLE,) * len(device.route)


def _tables(graph: Graph) -> dict[str, Any]:
    routes = [device.route if isinstance(device, Connection) else () for device in graph.devices]
    weights = [_weights(one) for one in graph.devices if isinstance(one, Connection)]
    serial = [device if isinstance(device, SerialDevice) else None for device in graph.devices]
    return {
        "device_is_connection": np.array([device is None for device in serial], dtype=np.uint8),
        "device_units": np.array([1 if one is None else one.units for one in serial], np.int64),
        "device_by_priority": np.array(
            [device.by_priority for device in graph.devices], dtype=np.uint8
        ),
        "device_cost_on_first_link": np.array(
            [
                isinstance(device, Connection) and device.cost_on_first_link
                for device in graph.devices
            ],
            dtype=np.uint8,
        ),
        "device_first_route": np.cumsum([0, *map(len, routes)], dtype=np.int64),
        "device_route": np.array([link for route in routes for link in route], dtype=np.int32),
        "device_weights": np.array([one for each in weights for one in each], dtype=np.int32),
        "device_overlap_group": np.array([one.overlap_group for one in graph.devices], np.int32),
        "device_overlap_slowdown": np.array(
            [device.overlap_slowdown for device in graph.devices], dtype=np.int32
        ),
        "link_bps": np.array([link.capacity_bps or 0 for link in graph.links], dtype=np.int64),
        "link_burst_bytes": np.array([link.burst_bytes for link in graph.links], dtype=np.int64),
        "pools": len(graph.pools),
        "gates": len(graph.gates),
    }
