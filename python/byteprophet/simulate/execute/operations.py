"""Collects the operations of a job's graph in plain lists, and makes the graph of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from byteprophet.errors import UserError
from byteprophet.graph import Graph, GraphBuilder
from byteprophet.graph.model import NONE
from byteprophet.simulate.costs.collectives import CollectiveCosts, Transfer
from byteprophet.simulate.execute.wiring import units

_LARGEST = 1 << 62
"""Of the sum of all nanoseconds, and of all bytes."""


@dataclass
class Operations:
    """A graph as it is built: one entry per operation in each list.

    ``queued``: the transfers that wait in queues, and how often (``queues``).
    """

    costs: CollectiveCosts
    builder: GraphBuilder = field(default_factory=GraphBuilder)
    duration_ns: list[int] = field(default_factory=list)
    units: list[int] = field(default_factory=list)
    device: list[int] = field(default_factory=list)
    pool: list[int] = field(default_factory=list)
    allocated_bytes: list[int] = field(default_factory=list)
    freed_bytes: list[int] = field(default_factory=list)
    before: list[int] = field(default_factory=list)
    after: list[int] = field(default_factory=list)
    queued: dict[int, int] = field(default_factory=dict)

    def add(self, duration_ns: int, device: int = NONE, units: int = 0) -> int:
        """Add an operation."""
        self.duration_ns.append(duration_ns)
        self.units.append(units)
        self.device.append(device)
        self.pool.append(NONE)
        self.allocated_bytes.append(0)
        self.freed_bytes.append(0)
        return len(self.duration_ns) - 1

    def flow(self, device: int, transfer: Transfer) -> int:
        """Add a transfer on a connection."""
        return self.flows(device, transfer, 1)

    def flows(self, device: int, transfer: Transfer, count: int) -> int:
        """Add equal transfers on a connection, and return the first one's number."""
        size = units(transfer, self.costs)
        return self.add_many([round(transfer.latency_ns)] * count, device, size)

    def add_rows(self, durations_ns: list[int], devices: list[int], units: list[int]) -> int:
        """Add operations, each on a device of its own, and return the first one's number."""
        first, count = len(self.duration_ns), len(durations_ns)
        self.duration_ns += durations_ns
        self.units += units
        self.device += devices
        self.pool += [NONE] * count
        self.allocated_bytes += [0] * count
        self.freed_bytes += [0] * count
        return first

    def add_many(self, durations_ns: list[int], device: int, units: int = 0) -> int:
        """Add operations on one device, and return the first one's number."""
        count = len(durations_ns)
        return self.add_rows(durations_ns, [device] * count, [units] * count)

    def may_queue(self, operation: int, transfer: Transfer) -> None:
        """Note a transfer that waits in queues of the network, if it has any and they meet."""
        if self.costs.cluster.network.queue_ns and True in transfer.links:
            self.queued[operation] = transfer.passes

    def depend_each(self, before: Sequence[int], after: Sequence[int]) -> None:
        """Make each operation of ``after`` wait for the one at the same place in ``before``."""
        self.before += before
        self.after += after

    def depend(self, before: int, after: int) -> None:
        """Make ``after`` wait for ``before``, if both are operations (-1: none)."""
        if before >= 0 and after >= 0:
            self.before.append(before)
            self.after.append(after)

    def allocate(self, operation: int, pool: int, size_bytes: int) -> None:
        """Allocate memory when an operation starts."""
        self.pool[operation] = pool
        self.allocated_bytes[operation] += size_bytes

    def free(self, operation: int, pool: int, size_bytes: int) -> None:
        """Free memory when an operation ends."""
        self.pool[operation] = pool
        self.freed_bytes[operation] += size_bytes

    def graph(self) -> Graph:
        """The graph.

        Raises:
            UserError: times or sizes are larger than the engine can count.
        """
        columns = (self.duration_ns, self.units, self.allocated_bytes)
        if any(sum(column) > _LARGEST for column in columns):
            raise UserError(
                "model: an iteration takes longer than a century, or as much memory; check its "
                "sizes, and micro_batch"
            )
        self.builder.add_block(
            len(self.duration_ns),
            np.array(self.duration_ns, np.int64),
            size_bytes=np.array(self.units, np.int64),
            device=np.array(self.device, np.int32),
            pool=np.array(self.pool, np.int32),
            allocated_bytes=np.array(self.allocated_bytes, np.int64),
            freed_bytes=np.array(self.freed_bytes, np.int64),
        )
        self.builder.depend_each(np.array(self.before, np.int64), np.array(self.after, np.int64))
        return self.builder.freeze()
