"""Builds a graph, operation by operation or in arrays.

Operations, devices, links, gates and pools are each numbered from 0, in the order in which they are
added. These numbers refer to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict

import numpy as np
import numpy.typing as npt

from byteprophet.graph.columns import Columns
from byteprophet.graph.labels import COLUMNS as LABELS
from byteprophet.graph.labels import Label, Labels
from byteprophet.graph.model import (
    NONE,
    Connection,
    Device,
    Gate,
    GatedOperations,
    Graph,
    Int64Array,
    IterationMarks,
    Link,
    Memory,
    SerialDevice,
    successors,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

_INT64 = ("duration_ns", "size_bytes", "latency_ns", "release_ns", "allocated_bytes", "freed_bytes")
_OPERATIONS = {
    **dict.fromkeys(_INT64, (np.int64, 0)),
    "device": (np.int32, NONE),
    "priority": (np.int32, 0),
    "pool": (np.int32, NONE),
    **{name: (dtype, getattr(Label(), name)) for name, dtype in LABELS.items()},
}
_FEW = 1024  # calls with at most this many dependencies are collected
_TOGETHER = 256  # collected calls that are written together
_MEMORY = ("pool", "allocated_bytes", "freed_bytes")
_GATED = {
    "operation": (np.int32, 0),
    "gate": (np.int32, 0),
    "key": (np.uint64, 0),
    "server": (np.uint32, 0),
    "priority": (np.int32, 0),
    "acked_by": (np.int32, 0),
}


class OperationColumns(TypedDict, total=False):
    """Properties of operations besides duration and label.

    Each is one number for all operations, or one number per operation. ``Graph`` and ``Memory``
    define them. A column that is not given is 0, but ``device`` and ``pool`` are -1 (none).
    """

    size_bytes: npt.ArrayLike
    device: npt.ArrayLike
    latency_ns: npt.ArrayLike
    priority: npt.ArrayLike
    release_ns: npt.ArrayLike
    pool: npt.ArrayLike
    allocated_bytes: npt.ArrayLike
    freed_bytes: npt.ArrayLike


class GraphBuilder:
    """Collects operations, and the devices that they run on. ``freeze`` makes the graph."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        """Make an empty graph. Labels refer by index to ``names``, those of tensors or layers."""
        self._names = list(names)
        self._number_of_name = {name: number for number, name in enumerate(self._names)}
        self._operations = Columns(_OPERATIONS)
        self._dependencies = Columns({"before": (np.int32, 0), "after": (np.int32, 0)})
        self._few: list[tuple[Int64Array, Int64Array]] = []  # collected dependencies
        self._gated = Columns(_GATED)
        self._marks = Columns({"operation": (np.int32, 0), "gate": (np.int32, 0)})
        self._devices: list[Device] = []
        self._links: list[Link] = []
        self._gates: list[Gate] = []
        self._pools: list[str] = []

    def __len__(self) -> int:
        """The number of operations."""
        return len(self._operations)

    def link(self, name: str, capacity_bps: int | None, burst_bytes: int = 0) -> int:
        """Add a link. A ``capacity_bps`` of None means that it is not limited."""
        self._links.append(Link(name, capacity_bps, burst_bytes))
        return len(self._links) - 1

    def serial(
        self,
        name: str,
        *,
        units: int = 1,
        by_priority: bool = False,
        overlap: tuple[int, int] = (NONE, 0),
    ) -> int:
        """Add a device, a ``SerialDevice``. ``overlap``: its overlap group and slowdown."""
        self._devices.append(SerialDevice(name, units, by_priority, *overlap))
        return len(self._devices) - 1

    def connection(
        self,
        name: str,
        route: Iterable[int],
        *,
        by_priority: bool = False,
        cost_on_first_link: bool = False,
        weights: Iterable[int] = (),
        overlap: tuple[int, int] = (NONE, 0),
    ) -> int:
        """Add a device, a ``Connection``. Connections and serial devices share their numbers.

        ``weights`` and ``overlap`` (group and slowdown) are as ``Connection`` describes.
        """
        self._devices.append(
            Connection(
                name, tuple(route), by_priority, cost_on_first_link, tuple(weights), *overlap
            )
        )
        return len(self._devices) - 1

    def gate(
        self,
        name: str,
        policy: str,
        settings: Mapping[str, int] | None = None,
        ready_times: Sequence[tuple[int, int, int, int]] = (),
    ) -> int:
        """Add a policy in front of operations, a ``Gate``."""
        self._gates.append(Gate(name, policy, dict(settings or {}), tuple(ready_times)))
        return len(self._gates) - 1

    def pool(self, name: str) -> int:
        """Add a memory pool."""
        self._pools.append(name)
        return len(self._pools) - 1

    def add(
        self,
        name: str,
        duration_ns: int = 0,
        *,
        after: Iterable[int] = (),
        label: Label | None = None,
        **columns: Unpack[OperationColumns],
    ) -> int:
        """Add one operation, which depends on those in ``after``, and return its number.

        ``name`` is the operation's own name, or that of the tensor or layer of its label. An empty
        name leaves the label unchanged. Raises ``UserError`` if a number does not fit into its
        column, at the latest in ``freeze``.
        """
        values: dict[str, npt.ArrayLike] = {} if label is None else label._asdict()
        if name:
            values["tensor"] = tensor = self._number_of_name.setdefault(name, len(self._names))
            if tensor == len(self._names):
                self._names.append(name)
        number = self._operations.add_one(duration_ns=duration_ns, **columns, **values)
        for before in after:
            self.depend(before, number)
        return number

    def add_block(
        self,
        shape: int | tuple[int, ...],
        duration_ns: npt.ArrayLike = 0,
        *,
        label: Label | None = None,
        **columns: Unpack[OperationColumns],
    ) -> Int64Array:
        """Add operations in an array of ``shape``, and return their numbers in that shape.

        Columns and labels are broadcast to ``shape``. Raises ``UserError`` if a number does not fit
        into its column.
        """
        values: dict[str, npt.ArrayLike] = {} if label is None else label._asdict()
        first = self._operations.add(shape, duration_ns=duration_ns, **columns, **values)
        return np.arange(first, len(self._operations)).reshape(shape)

    def depend(self, before: int, after: int) -> None:
        """Make operation ``after`` wait for operation ``before``."""
        self._write_few()
        self._dependencies.add_one(before=before, after=after)

    def depend_each(self, before: npt.ArrayLike, after: npt.ArrayLike) -> None:
        """Make each operation in ``after`` wait for the corresponding one in ``before``.

        The shapes are broadcast against each other. So all may wait for one operation, or one may
        wait for all. Raises ``UserError`` if a number does not fit, at the latest in ``freeze``.
        """
        before, after = np.asarray(before), np.asarray(after)
        if before.shape != after.shape:
            before, after = np.broadcast_arrays(before, after)
        if before.size > _FEW or not before.dtype == after.dtype == np.int64:
            self._write_few()
            self._dependencies.add(before.shape, before=before, after=after)
            return
        self._few.append((before.flatten(), after.flatten()))
        if len(self._few) == _TOGETHER:
            self._write_few()

    def _write_few(self) -> None:
        """Write the collected dependencies together, because each write has a fixed cost."""
        if few := self._few:
            self._few = []
            before, after = (np.concatenate(column) for column in zip(*few, strict=True))
            self._dependencies.add(len(before), before=before, after=after)

    def chain(self, operations: npt.ArrayLike) -> None:
        """Make each operation wait for the preceding one along the last axis."""
        numbers = np.asarray(operations)
        self.depend_each(numbers[..., :-1], numbers[..., 1:])

    def guard(
        self, operation: int, gate: int, *, key: int, server: int, priority: int, acked_by: int
    ) -> None:
        """Put an operation behind a gate, as ``GatedOperations`` describes."""
        self._gated.add_one(
            operation=operation,
            gate=gate,
            key=key,
            server=server,
            priority=priority,
            acked_by=acked_by,
        )

    def guard_block(
        self,
        operations: npt.ArrayLike,
        gate: npt.ArrayLike,
        *,
        key: npt.ArrayLike,
        server: npt.ArrayLike,
        priority: npt.ArrayLike,
        acked_by: npt.ArrayLike,
    ) -> None:
        """Put operations behind gates, as ``GatedOperations`` describes.

        All arguments are broadcast to the shape of ``operations``.
        """
        self._gated.add(
            np.shape(operations),
            operation=operations,
            gate=gate,
            key=key,
            server=server,
            priority=priority,
            acked_by=acked_by,
        )

    def mark_iteration(self, operations: npt.ArrayLike, gate: npt.ArrayLike) -> None:
        """Begin an iteration of each gate when its operation starts.

        ``gate`` is broadcast to the shape of ``operations``.
        """
        self._marks.add(np.shape(operations), operation=operations, gate=gate)

    def freeze(self) -> Graph:
        """Make the graph of everything added so far. Its arrays are read-only and not copied."""
        self._write_few()
        operations, dependencies = self._operations.whole(), self._dependencies.whole()
        first, successor = successors(len(self), dependencies["before"], dependencies["after"])
        memory = Memory(**{name: operations.pop(name) for name in _MEMORY})
        labels = Labels(**{name: operations.pop(name) for name in LABELS}, names=tuple(self._names))
        return Graph(
            **operations,
            first_successor=first,
            successor=successor,
            devices=tuple(self._devices),
            links=tuple(self._links),
            gates=tuple(self._gates),
            pools=tuple(self._pools),
            gated=GatedOperations(**self._gated.whole()),
            marks=IterationMarks(**self._marks.whole()),
            memory=memory if self._pools or (memory.pool != NONE).any() else Memory(),
            labels=labels,
        )
