"""The simulated ranks, their links and connections, and the graph that they build together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from byteprophet.graph.model import NONE, WHOLE
from byteprophet.simulate.compile.schedules import Action
from byteprophet.simulate.costs.blocks import PassTime, Spent
from byteprophet.simulate.costs.collectives import CollectiveCosts, Transfer
from byteprophet.simulate.execute.operations import Operations
from byteprophet.simulate.execute.wiring import UNIT_BYTES, Ports, Route, Wiring
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
        synchronised: the transfers of gradients that the optimizer waits for, and their kinds; and
            the launches of the host, if that runs ahead.
        gathered: the transfers of parameters after the optimizer.
        waited: collectives that operators wait for on links that others use, too: the transfer, its
            kind, and the place in ``computed`` of the operation that comes next.
    """

    pool: int
    computed: list[int] = field(default_factory=list)
    spent: list[PassTime] = field(default_factory=list)
    done: list[Done] = field(default_factory=list)
    waits: dict[int, list[tuple[int, Spent]]] = field(default_factory=dict)
    synchronised: list[tuple[int, Spent]] = field(default_factory=list)
    gathered: list[int] = field(default_factory=list)
    waited: list[tuple[int, Spent, int]] = field(default_factory=list)

    def wait(self, operation: int, transfer: int, use: Spent) -> None:
        """Note that an operation waits for a transfer."""
        self.waits.setdefault(operation, []).append((transfer, use))


@dataclass
class Rank:
    """One simulated rank.

    Attributes:
        pp_rank: its pipeline rank.
        member: its number among the ranks of that.
        number: its number among all ranks.
        gpu: its GPU.
        ports: its links.
        record: what it does.
        last: its latest operation.
        met: the collectives so far for which it met others.
        factor: how many times as long its kernels take.
    """

    pp_rank: int
    member: int
    number: int
    gpu: int
    ports: Ports
    record: RankRecord
    last: int = -1
    met: int = 0
    factor: float = 1.0


class Ranks:
    """All simulated ranks: some ``members`` of each pipeline rank.

    Attributes:
        operations: the graph that they build.
        of: the ranks of each pipeline rank.
    """

    def __init__(self, mesh: Mesh, costs: CollectiveCosts, members: Sequence[int]) -> None:
        self._costs = costs
        self._gpu = costs.cluster.gpu
        self._per_stage = mesh.ranks // mesh.pp
        self._connections: dict[tuple[str, Route, float], int] = {}
        self.operations = Operations(costs)
        self._wiring = Wiring(self.operations.builder, mesh, costs, members)
        self.of = [[self._rank(at, member) for member in members] for at in range(mesh.pp)]

    def _rank(self, pp_rank: int, member: int) -> Rank:
        builder = self.operations.builder
        name = f"rank {pp_rank}.{member}"
        number = pp_rank * self._per_stage + member
        ports = self._wiring.ports(name, number)
        gpu = builder.serial(
            f"{name} GPU", overlap=self._overlap(ports, self._gpu.overlap_slowdown)
        )
        return Rank(pp_rank, member, number, gpu, ports, RankRecord(builder.pool(name)))

    def _overlap(self, ports: Ports, slowdown: float) -> tuple[int, int]:
        """The overlap group of a rank: what runs on its GPU, and the collectives beside."""
        return ports.node[0], round(slowdown * WHOLE)

    def flow(self, rank: Rank, stream: str, transfer: Transfer) -> int:
        """Add a rank's part in a collective that others run beside."""
        return self.operations.flow(self.connection(rank, stream, transfer, beside=True), transfer)

    def connection(
        self, rank: Rank, stream: str, transfer: Transfer, *, beside: bool = False
    ) -> int:
        """A rank's connection for collectives. ``beside``: whether kernels run beside it."""
        stream = f"{stream} {rank.number}"
        route = rank.ports.both(transfer)
        if not beside:
            return self._connection(stream, route, transfer)
        slowdown = self._gpu.collective_slowdown
        return self._connection(stream, route, transfer, self._overlap(rank.ports, slowdown))

    def message(self, source: Rank, target: Rank, size: float, stream: str) -> tuple[int, Transfer]:
        """A transfer between two pipeline ranks, and its connection."""
        transfer = self._costs.send(size, source.number, target.number)
        route = source.ports.route(transfer, 0) + target.ports.route(transfer, 1)
        name = f"{stream} {source.number} {target.number}"
        return self._connection(name, route, transfer), transfer

    def _connection(
        self, name: str, route: Route, transfer: Transfer, overlap: tuple[int, int] = (NONE, 0)
    ) -> int:
        key = name, route, self._costs.scale(transfer)
        if key not in self._connections:
            self._connections[key] = self.operations.builder.connection(
                name, route.links, weights=route.weights, overlap=overlap
            )
        return self._connections[key]

    def unit_bytes(self) -> dict[int, float]:
        """By connection, the bytes of what is one in the sizes of the graph's operations."""
        return {device: scale * UNIT_BYTES for (_, _, scale), device in self._connections.items()}
