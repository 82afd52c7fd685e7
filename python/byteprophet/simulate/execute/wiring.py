"""The links of simulated ranks: inside their nodes, of adapters, and of leaf switches.

Ranks of a node that share an adapter share its link, and ranks below a leaf switch share its links
to the spine. A link has as much of the rate as belongs to the ranks that are simulated. These do
the same as those that are not, so each has what it would have among all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import ceil

from byteprophet.graph import GraphBuilder
from byteprophet.graph.model import WHOLE
from byteprophet.simulate.costs.collectives import CollectiveCosts, Transfer
from byteprophet.simulate.operation.mesh import Mesh

UNIT_BYTES = 16
"""Links inside nodes are faster than the engine's fastest. So it is given sizes in these units."""
_FASTEST_BPS = 1 << 40


@dataclass(frozen=True)
class Route:
    """Links, and the weight of each (``byteprophet.graph.Connection``)."""

    links: tuple[int, ...] = ()
    weights: tuple[int, ...] = ()

    def __add__(self, other: Route) -> Route:
        return Route(self.links + other.links, self.weights + other.weights)


@dataclass(frozen=True)
class Ports:
    """The links of one rank, each as a pair: away from it, and to it.

    Attributes:
        node: to the other GPUs in its node.
        adapter: to the network.
        leaf: from its leaf switch to the spine.
        leaf_weight: the weight of a flow on those that crosses them with all of its bytes.
        costs: of transfers.
    """

    node: tuple[int, int]
    adapter: tuple[int, int]
    leaf: tuple[int, int]
    leaf_weight: int
    costs: CollectiveCosts

    def route(self, transfer: Transfer, direction: int) -> Route:
        """The links that a transfer uses: away from the rank (0), or to it (1)."""
        parts = [(self.node, transfer.other), (self.adapter, 1.0)]
        if not transfer.between_nodes:
            parts = [(self.node, 1.0), (self.adapter, transfer.other)]
        parts.append((self.leaf, transfer.uplink * self.leaf_weight / WHOLE))
        used = [(links[direction], part) for links, part in parts if part > 0]
        scale = self.costs.scale(transfer) * WHOLE
        return Route(
            tuple(link for link, _ in used), tuple(max(1, round(part * scale)) for _, part in used)
        )

    def both(self, transfer: Transfer) -> Route:
        """The links that a collective uses."""
        return self.route(transfer, 0) + self.route(transfer, 1)


class Wiring:
    """Adds the links of ranks to a graph."""

    def __init__(
        self, builder: GraphBuilder, mesh: Mesh, costs: CollectiveCosts, members: Sequence[int]
    ) -> None:
        """``members``: the ranks of each pipeline rank that are simulated."""
        self._builder = builder
        self._costs = costs
        self._per_stage = mesh.ranks // mesh.pp
        self._links: dict[Hashable, tuple[int, int]] = {}
        ranks = [at * self._per_stage + member for at in range(mesh.pp) for member in members]
        self._users = Counter(key(rank) for rank in ranks for key in (self._adapter, self._leaf))

    def ports(self, name: str, rank: int) -> Ports:
        """The links of a rank."""
        costs = self._costs
        adapter, leaf = self._adapter(rank), self._leaf(rank)
        uplink_bps = _bps(costs.uplink_bytes_per_ns)
        scale = 1
        while uplink_bps * self._users[leaf] > _FASTEST_BPS * scale:
            scale *= 2
        return Ports(
            node=self._pair(("node", rank), name, "node", _bps(costs.node_bytes_per_ns)),
            adapter=self._pair(
                adapter, name, "network", _bps(costs.network_bytes_per_ns) * self._users[adapter]
            ),
            leaf=self._pair(leaf, name, "spine", uplink_bps * self._users[leaf] // scale),
            leaf_weight=WHOLE // scale,
            costs=costs,
        )

    def _pair(self, key: Hashable, name: str, end: str, rate_bps: int) -> tuple[int, int]:
        """A link in both directions; ``name``: of the first rank that uses it."""
        if key not in self._links:
            link = self._builder.link
            self._links[key] = (
                link(f"{name} to {end}", rate_bps),
                link(f"{name} from {end}", rate_bps),
            )
        return self._links[key]

    def _adapter(self, rank: int) -> Hashable:
        """The adapter of a rank: one of its own, unless neighbours in its node share one evenly."""
        cluster = self._costs.cluster
        gpus, adapters = cluster.node.gpus, cluster.network.adapters
        shared = gpus // adapters if gpus % adapters == 0 else 1
        if self._per_stage % shared and shared % self._per_stage:
            shared = 1
        return "adapter", rank // shared

    def _leaf(self, rank: int) -> Hashable:
        """The leaf switch of a rank; with rails, one for each GPU of a node."""
        cluster = self._costs.cluster
        gpus = cluster.node.gpus
        if not cluster.network.nodes_per_leaf:
            return "leaf of", rank
        nodes = rank // gpus // cluster.network.nodes_per_leaf
        return ("leaf", nodes, rank % gpus if cluster.network.rails else 0)


def units(transfer: Transfer, costs: CollectiveCosts) -> int:
    """The size of a transfer for the engine."""
    return ceil(transfer.size_bytes / costs.scale(transfer) / UNIT_BYTES)


def _bps(bytes_per_ns: float) -> int:
    return round(bytes_per_ns * 8e9 / UNIT_BYTES)
