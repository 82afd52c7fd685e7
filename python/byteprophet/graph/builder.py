"""Builds a graph operation by operation.

Whatever is added gets the next number of its kind, from 0; others refer to it by that.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

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


class GraphBuilder:
    """Collects operations and what they run on; ``freeze`` makes the graph."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._int64 = {
            name: array("q")
            for name in (
                "duration_ns",
                "size_bytes",
                "latency_ns",
                "release_ns",
                "allocated_bytes",
                "freed_bytes",
            )
        }
        self._int32 = {name: array("i") for name in ("device", "priority", "pool")}
        self._before = array("i")
        self._after = array("i")
        self._devices: list[Device] = []
        self._links: list[Link] = []
        self._gates: list[Gate] = []
        self._pools: list[str] = []
        self._gated: list[tuple[int, int, int, int, int, int]] = []
        self._marks: list[tuple[int, int]] = []

    def __len__(self) -> int:
        """How many operations there are."""
        return len(self._names)

    def link(self, name: str, capacity_bps: int | None, burst_bytes: int = 0) -> int:
        """A link; None: not limited."""
        self._links.append(Link(name, capacity_bps, burst_bytes))
        return len(self._links) - 1

    def serial(self, name: str, *, units: int = 1, by_priority: bool = False) -> int:
        """A device: ``SerialDevice``."""
        self._devices.append(SerialDevice(name, units, by_priority))
        return len(self._devices) - 1

    def connection(
        self,
        name: str,
        route: Iterable[int],
        *,
        by_priority: bool = False,
        cost_on_first_link: bool = False,
    ) -> int:
        """A device: ``Connection``, numbered with the serial ones."""
        self._devices.append(Connection(name, tuple(route), by_priority, cost_on_first_link))
        return len(self._devices) - 1

    def gate(
        self,
        name: str,
        policy: str,
        settings: Mapping[str, int] | None = None,
        ready_times: Sequence[tuple[int, int, int, int]] = (),
    ) -> int:
        """A policy that operations can be put behind: ``Gate``."""
        self._gates.append(Gate(name, policy, dict(settings or {}), tuple(ready_times)))
        return len(self._gates) - 1

    def pool(self, name: str) -> int:
        """A memory pool."""
        self._pools.append(name)
        return len(self._pools) - 1

    def add(
        self,
        name: str,
        duration_ns: int = 0,
        *,
        device: int = NONE,
        after: Iterable[int] = (),
        size_bytes: int = 0,
        latency_ns: int = 0,
        priority: int = 0,
        release_ns: int = 0,
        pool: int = NONE,
        allocated_bytes: int = 0,
        freed_bytes: int = 0,
    ) -> int:
        """An operation, which depends on those in ``after``."""
        number = len(self._names)
        self._names.append(name)
        for before in after:
            self.depend(before, number)
        self._int64["duration_ns"].append(duration_ns)
        self._int64["size_bytes"].append(size_bytes)
        self._int64["latency_ns"].append(latency_ns)
        self._int64["release_ns"].append(release_ns)
        self._int64["allocated_bytes"].append(allocated_bytes)
        self._int64["freed_bytes"].append(freed_bytes)
        self._int32["device"].append(device)
        self._int32["priority"].append(priority)
        self._int32["pool"].append(pool)
        return number

    def add_block(
        self,
        count: int,
        duration_ns: npt.ArrayLike = 0,
        *,
        device: npt.ArrayLike = NONE,
        size_bytes: npt.ArrayLike = 0,
        latency_ns: npt.ArrayLike = 0,
        priority: npt.ArrayLike = 0,
    ) -> Int64Array:
        """``count`` operations without names, as arrays; returns their numbers."""
        first = len(self._names)
        self._names.extend([""] * count)
        given = {
            "duration_ns": duration_ns,
            "size_bytes": size_bytes,
            "latency_ns": latency_ns,
            "device": device,
            "priority": priority,
        }
        for columns, dtype in ((self._int64, np.int64), (self._int32, np.int32)):
            for name, column in columns.items():
                default = NONE if name in ("device", "pool") else 0
                values = np.broadcast_to(np.asarray(given.get(name, default), dtype), count)
                column.frombytes(values.tobytes())
        return np.arange(first, first + count)

    def depend_each(self, before: npt.ArrayLike, after: npt.ArrayLike) -> None:
        """Each of ``after`` waits for the one at its place in ``before``; one may stand for all."""
        pairs = np.broadcast_arrays(np.asarray(before, np.int32), np.asarray(after, np.int32))
        self._before.frombytes(pairs[0].tobytes())
        self._after.frombytes(pairs[1].tobytes())

    def chain(self, operations: npt.ArrayLike) -> None:
        """Each waits for the one before it."""
        numbers = np.asarray(operations)
        self.depend_each(numbers[:-1], numbers[1:])

    def depend(self, before: int, after: int) -> None:
        """``after`` waits for ``before``."""
        self._before.append(before)
        self._after.append(after)

    def guard(
        self, operation: int, gate: int, *, key: int, server: int, priority: int, acked_by: int
    ) -> None:
        """Put an operation behind a gate: ``GatedOperations``."""
        self._gated.append((operation, gate, key, server, priority, acked_by))

    def guard_block(
        self,
        operations: npt.ArrayLike,
        gate: int,
        *,
        key: npt.ArrayLike,
        server: npt.ArrayLike,
        priority: npt.ArrayLike,
        acked_by: npt.ArrayLike,
    ) -> None:
        """As ``guard``, of arrays."""
        columns = np.broadcast_arrays(operations, gate, key, server, priority, acked_by)
        self._gated.extend(zip(*(column.tolist() for column in columns), strict=True))

    def mark_iteration(self, operation: int, gate: int) -> None:
        """An iteration begins for ``gate`` when ``operation`` starts."""
        self._marks.append((operation, gate))

    def freeze(self) -> Graph:
        """The graph of all that was added so far."""
        int64 = {name: np.array(values, dtype=np.int64) for name, values in self._int64.items()}
        int32 = {name: np.array(values, dtype=np.int32) for name, values in self._int32.items()}
        first, successor = successors(
            len(self),
            np.array(self._before, dtype=np.int32),
            np.array(self._after, dtype=np.int32),
        )
        gated = list(zip(*self._gated, strict=True)) or [()] * 6
        marks = list(zip(*self._marks, strict=True)) or [()] * 2
        return Graph(
            duration_ns=int64["duration_ns"],
            size_bytes=int64["size_bytes"],
            device=int32["device"],
            latency_ns=int64["latency_ns"],
            priority=int32["priority"],
            release_ns=int64["release_ns"],
            first_successor=first,
            successor=successor,
            devices=tuple(self._devices),
            links=tuple(self._links),
            gates=tuple(self._gates),
            pools=tuple(self._pools),
            gated=GatedOperations(
                operation=np.array(gated[0], dtype=np.int32),
                gate=np.array(gated[1], dtype=np.int32),
                key=np.array(gated[2], dtype=np.uint64),
                server=np.array(gated[3], dtype=np.uint32),
                priority=np.array(gated[4], dtype=np.int32),
                acked_by=np.array(gated[5], dtype=np.int32),
            ),
            marks=IterationMarks(
                operation=np.array(marks[0], dtype=np.int32),
                gate=np.array(marks[1], dtype=np.int32),
            ),
            memory=Memory(int32["pool"], int64["allocated_bytes"], int64["freed_bytes"])
            if self._pools
            else Memory(),
            operation_names=tuple(self._names),
        )
