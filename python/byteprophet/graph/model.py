"""A graph of operations: arrays with one entry per operation, and small tables beside them.

Nothing is checked here. ``byteprophet.replay`` raises an error if a graph cannot be replayed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from byteprophet.errors import UserError
from byteprophet.graph.labels import Labels

Int64Array: TypeAlias = npt.NDArray[np.int64]
Int32Array: TypeAlias = npt.NDArray[np.int32]
UInt64Array: TypeAlias = npt.NDArray[np.uint64]
UInt32Array: TypeAlias = npt.NDArray[np.uint32]

NONE = -1
"""Stands for no device, no memory pool, or no overlap group."""
WHOLE = 1 << 20
"""The parts in which weights and slowdowns are counted."""


@dataclass(frozen=True)
class SerialDevice:
    """Serves up to ``units`` operations at a time, in the order in which they become ready.

    With ``by_priority``, the operation with the largest priority goes first. With an
    ``overlap_group``, operations take ``WHOLE + overlap_slowdown`` parts of ``WHOLE`` as long while
    a connection of that group has a flow. ``units`` is 1 then.
    """

    name: str
    units: int = 1
    by_priority: bool = False
    overlap_group: int = NONE
    overlap_slowdown: int = 0


@dataclass(frozen=True)
class Connection:
    """Serves one flow at a time, over all links of its ``route`` (indices) at once.

    A flow has a fixed cost before its bytes. With ``cost_on_first_link``, the cost occupies the
    first link, like the bytes that pass in that time. Otherwise, it takes time but no bandwidth.
    With ``weights``, the flow takes its rate times the weight, in parts of ``WHOLE``, of each link.
    With an ``overlap_group``, bytes are slowed while a serial device of that group is busy.
    """

    name: str
    route: tuple[int, ...]
    by_priority: bool = False
    cost_on_first_link: bool = False
    weights: tuple[int, ...] = ()
    overlap_group: int = NONE
    overlap_slowdown: int = 0


Device: TypeAlias = SerialDevice | Connection


@dataclass(frozen=True)
class Link:
    """A link, shared max-min fairly by the connections that cross it.

    A ``capacity_bps`` of None or 0 means that it is not limited. The link behaves like a token
    bucket: while it is idle, it collects capacity for up to ``burst_bytes``, which then pass at
    once.
    """

    name: str
    capacity_bps: int | None
    burst_bytes: int = 0


@dataclass(frozen=True)
class Gate:
    """A scheduling policy in front of operations, by its name in the registry.

    ``ready_times`` is a profile that is known in advance, in the form of
    ``_core.Policy.set_ready_times``: tuples (tensor, priority, ready_ns, spread_ns).
    """

    name: str
    policy: str
    settings: Mapping[str, int] = field(default_factory=dict)
    ready_times: tuple[tuple[int, int, int, int], ...] = ()


def _no_int32() -> Int32Array:
    return np.zeros(0, dtype=np.int32)


def _no_int64() -> Int64Array:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class GatedOperations:
    """Operations behind gates, in any order. Each array has shape (gated,).

    The gate's policy sees ``key``, ``server``, ``priority`` and the operation's size. Keys must be
    unique among the operations that are pending or in flight at the gate. The acknowledgement is
    the end of operation ``acked_by``, plus its latency.
    """

    operation: Int32Array = field(default_factory=_no_int32)
    gate: Int32Array = field(default_factory=_no_int32)
    key: UInt64Array = field(default_factory=lambda: np.zeros(0, dtype=np.uint64))
    server: UInt32Array = field(default_factory=lambda: np.zeros(0, dtype=np.uint32))
    priority: Int32Array = field(default_factory=_no_int32)
    acked_by: Int32Array = field(default_factory=_no_int32)


@dataclass(frozen=True, eq=False)
class IterationMarks:
    """Operations whose start begins an iteration of a gate. Each array has shape (marks,)."""

    operation: Int32Array = field(default_factory=_no_int32)
    gate: Int32Array = field(default_factory=_no_int32)


@dataclass(frozen=True, eq=False)
class Memory:
    """The memory that operations allocate at their start and free at their end.

    Each array has shape (operations,), or is empty. A ``pool`` of -1 means none.
    """

    pool: Int32Array = field(default_factory=_no_int32)
    allocated_bytes: Int64Array = field(default_factory=_no_int64)
    freed_bytes: Int64Array = field(default_factory=_no_int64)


@dataclass(frozen=True, eq=False)
class Graph:
    """Operations 0 to n - 1, their dependencies, and what they run on.

    Attributes:
        duration_ns: the duration; for a flow, the fixed cost before its bytes; shape (n,).
        size_bytes: the size, which takes time on connections only, (n,).
        device: the device, or -1 for none, (n,).
        latency_ns: the time from the operation's end until its successors may start, (n,).
        priority: used by devices with ``by_priority``; larger is more urgent, (n,).
        release_ns: the earliest time at which the operation is ready, (n,).
        first_successor: (n + 1,). The successors of operation i are
            ``successor[first_successor[i]:first_successor[i + 1]]``.
        successor: the successors of all operations.
        devices: the devices.
        links: the links.
        gates: the gates.
        pools: the names of the memory pools.
        gated: the operations behind gates.
        marks: the operations that begin iterations of gates.
        memory: the memory of operations.
        labels: what operations are, for messages and for code that rewrites graphs. Replay does not
            use them.
    """

    duration_ns: Int64Array
    size_bytes: Int64Array
    device: Int32Array
    latency_ns: Int64Array
    priority: Int32Array
    release_ns: Int64Array
    first_successor: Int64Array
    successor: Int32Array
    devices: tuple[Device, ...] = ()
    links: tuple[Link, ...] = ()
    gates: tuple[Gate, ...] = ()
    pools: tuple[str, ...] = ()
    gated: GatedOperations = field(default_factory=GatedOperations)
    marks: IterationMarks = field(default_factory=IterationMarks)
    memory: Memory = field(default_factory=Memory)
    labels: Labels = field(default_factory=Labels)

    def __len__(self) -> int:
        return len(self.duration_ns)

    def edges(self) -> tuple[Int32Array, Int32Array]:
        """The dependencies, as two arrays of shape (dependencies,): predecessor and successor."""
        counts = np.diff(self.first_successor)
        before = np.repeat(np.arange(len(self), dtype=np.int32), counts)
        return before, self.successor

    def select(self, operations: npt.ArrayLike) -> Graph:
        """The graph of ``operations`` only, in ascending order, on the same devices.

        Dependencies on other operations are dropped. Raises ``UserError`` if a gated operation is
        selected without the operation that acknowledges it.
        """
        chosen = np.unique(np.asarray(operations, dtype=np.int64))
        number = np.full(len(self), NONE, dtype=np.int32)
        number[chosen] = np.arange(len(chosen), dtype=np.int32)
        before, after = (number[ends] for ends in self.edges())
        inside = (before >= 0) & (after >= 0)
        first, successor = successors(len(chosen), before[inside], after[inside])
        memory = self.memory
        return Graph(
            duration_ns=self.duration_ns[chosen],
            size_bytes=self.size_bytes[chosen],
            device=self.device[chosen],
            latency_ns=self.latency_ns[chosen],
            priority=self.priority[chosen],
            release_ns=self.release_ns[chosen],
            first_successor=first,
            successor=successor,
            devices=self.devices,
            links=self.links,
            gates=self.gates,
            pools=self.pools,
            gated=self._select_gated(number),
            marks=self._select_marks(number),
            memory=Memory(
                memory.pool[chosen], memory.allocated_bytes[chosen], memory.freed_bytes[chosen]
            )
            if len(memory.pool)
            else memory,
            labels=self.labels.select(chosen),
        )

    def _select_gated(self, number: Int32Array) -> GatedOperations:
        gated = self.gated
        operation = number[gated.operation]
        rows = operation >= 0
        acked_by = number[gated.acked_by][rows]
        if (acked_by < 0).any():
            row = int(np.flatnonzero(rows)[np.argmax(acked_by < 0)])
            raise UserError(
                f"graph: operation {gated.operation[row]} is selected without operation "
                f"{gated.acked_by[row]}, which acknowledges it; select that, too"
            )
        return GatedOperations(
            operation=operation[rows],
            gate=gated.gate[rows],
            key=gated.key[rows],
            server=gated.server[rows],
            priority=gated.priority[rows],
            acked_by=acked_by,
        )

    def _select_marks(self, number: Int32Array) -> IterationMarks:
        operation = number[self.marks.operation]
        return IterationMarks(operation[operation >= 0], self.marks.gate[operation >= 0])


def successors(
    operations: int, before: Int32Array, after: Int32Array
) -> tuple[Int64Array, Int32Array]:
    """Convert dependencies in any order to ``Graph.first_successor`` and ``Graph.successor``.

    Raises ``UserError`` if an operation waits for one that does not exist.
    """
    unknown = (before < 0) | (before >= operations)
    if unknown.any():
        one = int(np.argmax(unknown))
        raise UserError(
            f"graph: operation {after[one]} waits for operation {before[one]}; there are only "
            f"{operations}"
        )
    first = np.zeros(operations + 1, dtype=np.int64)
    np.cumsum(np.bincount(before, minlength=operations), out=first[1:])
    # Blocks are long sorted runs, which numpy's timsort sorts faster than a radix sort would.
    return first, after[np.argsort(before, kind="stable")]
