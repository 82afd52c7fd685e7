"""A graph of operations: arrays with one entry per operation, and small tables beside them.

Nothing is checked here; ``byteprophet.replay`` refuses what cannot be replayed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from byteprophet.errors import UserError

Int64Array: TypeAlias = npt.NDArray[np.int64]
Int32Array: TypeAlias = npt.NDArray[np.int32]
UInt64Array: TypeAlias = npt.NDArray[np.uint64]
UInt32Array: TypeAlias = npt.NDArray[np.uint32]

NONE = -1
"""In place of a device or a memory pool: there is none."""


@dataclass(frozen=True)
class SerialDevice:
    """Serves as many operations at a time as it has ``units``, in the order of readiness.

    ``by_priority``: the larger priority first.
    """

    name: str
    units: int = 1
    by_priority: bool = False


@dataclass(frozen=True)
class Connection:
    """Serves one flow at a time, over all links of its ``route`` (indices) at once.

    ``cost_on_first_link``: the first link bears the fixed cost in front of a flow's bytes, as it
    would bear as many bytes as pass in that time; else it takes its time and nothing more.
    """

    name: str
    route: tuple[int, ...]
    by_priority: bool = False
    cost_on_first_link: bool = False


Device: TypeAlias = SerialDevice | Connection


@dataclass(frozen=True)
class Link:
    """Shared max-min fairly by the connections that cross it. None or 0: not limited.

    ``burst_bytes``: what it could have carried while it had nothing to carry, so much at most,
    passes at once, as through a token bucket.
    """

    name: str
    capacity_bps: int | None
    burst_bytes: int = 0


@dataclass(frozen=True)
class Gate:
    """A scheduling policy in front of operations, by its name in the registry.

    ``ready_times``: a profile known beforehand, as ``_core.Policy.set_ready_times`` takes it:
    (tensor, priority, ready_ns, spread_ns).
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
    """Operations behind gates, in any order; shape (gated,) each.

    What the gate's policy sees is ``key`` (unique among what is pending or in flight there),
    ``server``, ``priority`` and the operation's size. ``acked_by``: the operation whose end, plus
    its latency, is the acknowledgement.
    """

    operation: Int32Array = field(default_factory=_no_int32)
    gate: Int32Array = field(default_factory=_no_int32)
    key: UInt64Array = field(default_factory=lambda: np.zeros(0, dtype=np.uint64))
    server: UInt32Array = field(default_factory=lambda: np.zeros(0, dtype=np.uint32))
    priority: Int32Array = field(default_factory=_no_int32)
    acked_by: Int32Array = field(default_factory=_no_int32)


@dataclass(frozen=True, eq=False)
class IterationMarks:
    """Operations by whose start an iteration begins for a gate; shape (marks,) each."""

    operation: Int32Array = field(default_factory=_no_int32)
    gate: Int32Array = field(default_factory=_no_int32)


@dataclass(frozen=True, eq=False)
class Memory:
    """What operations take from a pool at their start and give back at their end.

    Shape (operations,) each, or empty; ``pool`` -1: none.
    """

    pool: Int32Array = field(default_factory=_no_int32)
    allocated_bytes: Int64Array = field(default_factory=_no_int64)
    freed_bytes: Int64Array = field(default_factory=_no_int64)


@dataclass(frozen=True, eq=False)
class Graph:
    """Operations 0 to n - 1, what they depend on, and what they run on.

    ``duration_ns`` (of a flow: the fixed cost in front of its bytes), ``size_bytes`` (takes time on
    connections only), ``device`` (-1: none), ``latency_ns`` (after the end, until successors hear
    of it), ``priority`` (of devices by priority; larger is more urgent), ``release_ns`` (not ready
    before): shape (n,). ``first_successor``: (n + 1,); the successors of operation i are
    ``successor[first_successor[i]:first_successor[i + 1]]``. ``operation_names``: n, or none.
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
    operation_names: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.duration_ns)

    def edges(self) -> tuple[Int32Array, Int32Array]:
        """Who is waited for, and who waits: shape (dependencies,) each."""
        counts = np.diff(self.first_successor)
        before = np.repeat(np.arange(len(self), dtype=np.int32), counts)
        return before, self.successor

    def select(self, operations: npt.ArrayLike) -> Graph:
        """The graph of these operations alone, in ascending order, on the same devices.

        Dependencies on others are left out. UserError if a gated operation is among them and what
        acknowledges it is not.
        """
        chosen = np.unique(np.asarray(operations, dtype=np.int64))
        number = np.full(len(self), NONE, dtype=np.int32)
        number[chosen] = np.arange(len(chosen), dtype=np.int32)
        before, after = (number[ends] for ends in self.edges())
        inside = (before >= 0) & (after >= 0)
        first, successor = successors(len(chosen), before[inside], after[inside])
        memory = self.memory
        names = self.operation_names
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
            operation_names=[names[int(operation)] for operation in chosen] if names else (),
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
    operations: int, before: npt.NDArray[np.int32], after: npt.NDArray[np.int32]
) -> tuple[Int64Array, Int32Array]:
    """Dependencies in any order as ``Graph.first_successor`` and ``Graph.successor``."""
    first = np.zeros(operations + 1, dtype=np.int64)
    np.cumsum(np.bincount(before, minlength=operations), out=first[1:])
    return first, after[np.argsort(before, kind="stable")].astype(np.int32, copy=False)
