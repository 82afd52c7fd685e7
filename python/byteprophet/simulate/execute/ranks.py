"""The simulated ranks, their links and connections, and the graph that they build together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from byteprophet.simulate.compile.schedules import Action
from byteprophet.simulate.costs.blocks import PassTime, Spent
from byteprophet.simulate.costs.collectives import CollectiveCosts, Transfer
from byteprophet.simulate.execute.operations import Operations, Ports
from byteprophet.simulate.operation.mesh import Mesh


class Done(NamedTuple):
    """An entry of the schedule, and its first and its last operation."""

    action: Action
    first: int
    last: int


@dataclass
class RankRecord:
    """What one rank does, by operations of the graph.

    Attributes:
        pool: its memory pool of activations.
        computed: its operations on the GPU, in order; the last one is the optimizer.
        spent: what the time of each of them is spent on.
        done: the entries of the schedule, in order.
        waits: for operations that wait for transfers: these, and their kinds.
        synchronised: the transfers of gradients that the optimizer waits for, and their kinds.
        gathered: the transfers of parameters after the optimizer.
    """

    pool: int
    computed: list[int] = field(default_factory=list)
    spent: list[PassTime] = field(default_factory=list)
    done: list[Done] = field(default_factory=list)
    waits: dict[int, list[tuple[int, Spent]]] = field(default_factory=dict)
    synchronised: list[tuple[int, Spent]] = field(default_factory=list)
    gathered: list[int] = field(default_factory=list)

    def wait(self, operation: int, transfer: int, use: Spent) -> None:
        """Note that an operation waits for a transfer."""
        self.waits.setdefault(operation, []).append((transfer, use))


@dataclass
class Rank:
    """One simulated rank. ``ends``: where each piece of its work ends."""

    gpu: int
    ports: Ports
    record: RankRecord
    last: int = -1
    ends: list[int] = field(default_factory=list)


class Ranks:
    """All simulated ranks: ``members`` of each pipeline rank.

    Attributes:
        operations: the graph that they build.
        of: the ranks of each pipeline rank.
    """

    def __init__(
        self, mesh: Mesh, costs: CollectiveCosts, gpus_per_node: int, members: int
    ) -> None:
        self._mesh = mesh
        self._costs = costs
        self._gpus_per_node = gpus_per_node
        self._connections: dict[tuple[object, ...], int] = {}
        self.operations = Operations()
        self.of = [[self._rank(at, member) for member in range(members)] for at in range(mesh.pp)]

    def _rank(self, pp_rank: int, member: int) -> Rank:
        builder = self.operations.builder
        name = f"rank {pp_rank}.{member}"
        ports = self.operations.ports(name, self._costs)
        return Rank(builder.serial(f"{name} GPU"), ports, RankRecord(builder.pool(name)))

    def flow(self, rank: Rank, stream: str, transfer: Transfer) -> int:
        """Add a rank's part in a collective."""
        route = rank.ports.both(transfer)
        return self.operations.flow(self._connection((stream, *route), route), transfer)

    def message(
        self, source: int, target: int, member: int, size: int, stream: str
    ) -> tuple[int, Transfer]:
        """A transfer between two pipeline ranks, and its connection."""
        per_stage = self._mesh.ranks // self._mesh.pp
        nodes = {(rank * per_stage + member) // self._gpus_per_node for rank in (source, target)}
        transfer = self._costs.send(size, between_nodes=len(nodes) > 1)
        out, _ = self.of[source][member].ports.both(transfer)
        _, into = self.of[target][member].ports.both(transfer)
        return self._connection((stream, out, into), (out, into)), transfer

    def _connection(self, key: tuple[object, ...], route: tuple[int, ...]) -> int:
        if key not in self._connections:
            name = " ".join(map(str, key))
            self._connections[key] = self.operations.builder.connection(name, route)
        return self._connections[key]
