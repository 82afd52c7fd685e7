"""The time of collectives: which link limits them, the bytes that cross it, and the latency.

A ring over ``n`` ranks moves ``(n - 1) / n`` of the tensor through each rank for a reduce-scatter
or all-gather, and twice that for an all-reduce. Reading and writing a rank's own part takes a part
of a step more (``own_step``). If ``m`` ranks of the group share a node, an
``m``-th of that crosses each rank's part of the node's adapters, because NCCL makes a ring per
adapter. Ranks of other groups in the node do the same at the same time, so each rank has only its
own part of them. Between many nodes, an all-reduce may be a tree, which takes fewer steps.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from math import ceil, log2

from byteprophet.simulate.clusters.description import Cluster
from byteprophet.simulate.compile.steps import Collective, CollectiveKind
from byteprophet.simulate.costs.link_rings import ring_count
from byteprophet.simulate.operation.mesh import Mesh

_PASSES = {
    CollectiveKind.ALL_REDUCE: 2,
    CollectiveKind.ALL_GATHER: 1,
    CollectiveKind.REDUCE_SCATTER: 1,
    CollectiveKind.ALL_TO_ALL: 1,
    CollectiveKind.SEND: 1,
}

_ALONE = 16.0
"""Bytes per nanosecond as which each transfer counts that has its links for itself."""


_SMALL_CHUNK_BYTES = 96 << 10
"""What a rank sends in a step of a ring is sent with the low-latency protocol below this size."""
_LOW_LATENCY = 0.62
"""The latency of that protocol, over that for large chunks."""
_EXPOSED = 0.65
"""The least part of a ring's latency that does not pass while bytes travel: chunks are sent in
slices, the first of which travels on while the others arrive."""


@dataclass(frozen=True)
class Group:
    """Where the ranks of a group are: ``local`` of them in each of ``nodes`` nodes.

    ``gpus``: those in the first node, for each group in that node; empty: one group, from GPU 0.
    ``leaves``: the leaf switches that the nodes are below.
    """

    local: int
    nodes: int
    gpus: tuple[tuple[int, ...], ...] = field(default=(), compare=False)
    leaves: int = field(default=1, compare=False)

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.local * self.nodes


@dataclass(frozen=True)
class Transfer:
    """A collective as a flow on one rank's links.

    Attributes:
        between_nodes: whether the network limits it, or else the links in the node.
        size_bytes: the bytes that cross that link, one direction.
        latency_ns: the time besides.
        uplink: the bytes that also cross the rank's share of its leaf's uplinks, over those.
        other: the bytes that also cross the network, or the links in the node, if it is the other
            that limits; over those.
        passes: how often the tensor goes over all ranks.
    """

    between_nodes: bool
    size_bytes: float
    latency_ns: float
    uplink: float = 0.0
    other: float = 0.0
    passes: int = 1

    @property
    def links(self) -> frozenset[bool]:
        """The links that it needs most of: those in the node (False), and the network (True)."""
        return frozenset((self.between_nodes, self.between_nodes or self.other > 0))


class CollectiveCosts:
    """The time of collectives of a mesh whose rank 0 is GPU 0 of the first node."""

    def __init__(self, cluster: Cluster, mesh: Mesh) -> None:
        self.cluster = cluster
        self._mesh = mesh
        self._groups: dict[tuple[str, ...], Group] = {}
        node, network = cluster.node, cluster.network
        self.node_bytes_per_ns = node.gpu_bytes_per_s * node.efficiency / 1e9
        self.network_bytes_per_ns = cluster.network_bytes_per_s * network.efficiency / 1e9
        self.uplink_bytes_per_ns = self.network_bytes_per_ns * network.uplink_share

    def group(self, axes: tuple[str, ...]) -> Group:
        """The group along these axes."""
        if axes not in self._groups:
            per_node = self.cluster.node.gpus
            of_node = Counter(rank // per_node for rank in self._mesh.group(axes))
            first = range(min(per_node, self._mesh.ranks))
            groups = {self._mesh.group(axes, rank) for rank in first}
            gpus = sorted(tuple(rank for rank in group if rank in first) for group in groups)
            leaves = {self.cluster.leaf(node) for node in of_node}
            self._groups[axes] = Group(
                max(of_node.values()), len(of_node), tuple(gpus), len(leaves)
            )
        return self._groups[axes]

    def time_ns(self, collective: Collective) -> float:
        """The time of a collective that has its links for itself."""
        return self.alone_ns(self.transfer_of(collective))

    def transfer_of(self, collective: Collective) -> Transfer:
        """A collective as a flow on one rank's links."""
        return self.transfer(collective.kind, self.group(collective.axes), collective.size_bytes)

    def alone_ns(self, transfer: Transfer) -> float:
        """The time of a transfer that has its links for itself."""
        return transfer.latency_ns + transfer.size_bytes / self.rate(transfer)

    def rate(self, transfer: Transfer) -> float:
        """The rate of the link that limits a transfer, in bytes per nanosecond."""
        if not transfer.between_nodes:
            return self.node_bytes_per_ns
        return self._network_rate(transfer.uplink)

    def scale(self, transfer: Transfer) -> float:
        """The bytes of a transfer that count as one.

        All transfers have the same rate if they are alone. So those that share a link are slowed by
        the same factor, whatever part of it they need.
        """
        return self.rate(transfer) / _ALONE

    def _network_rate(self, uplink: float) -> float:
        """What a rank sends between nodes, if this part of it crosses its leaf's uplinks."""
        if not uplink:
            return self.network_bytes_per_ns
        return min(self.network_bytes_per_ns, self.uplink_bytes_per_ns / uplink)

    def transfer(self, kind: CollectiveKind, group: Group, size_bytes: float) -> Transfer:
        """A collective of a group, whose tensor has ``size_bytes``."""
        node, network = self.cluster.node, self.cluster.network
        ranks, nodes, passes = group.ranks, group.nodes, _PASSES[kind]
        wanted = kind
        if ranks == 1:
            return Transfer(False, 0.0, 0.0)
        if kind is CollectiveKind.REDUCE_SCATTER and network.all_reduce_only:
            kind, passes = CollectiveKind.ALL_REDUCE, _PASSES[CollectiveKind.ALL_REDUCE]
        through = passes * (ranks - 1 + node.own_step) / ranks * size_bytes
        if kind is CollectiveKind.ALL_TO_ALL:
            # What stays in the node does not cross the network.
            outside = (ranks - group.local) / ranks * size_bytes
            inside = (group.local - 1) / ranks * size_bytes
        elif kind is CollectiveKind.SEND:
            # One neighbour after the other. One message at a time leaves the node, over one
            # adapter, or over as much of it as the group's ranks have together.
            inside = (ranks - 1) / ranks * size_bytes
            outside = inside / self._shares(group.local) if nodes > 1 else 0.0
        else:
            outside, inside = (through / group.local if nodes > 1 else 0.0), through
        if group.local == 1:
            inside = 0.0  # links in the node carry nothing
        inside *= self._slowdown(group) if nodes == 1 else 1.0
        uplink = uplink_part(kind, group)
        if kind is CollectiveKind.SEND:
            uplink *= self._shares(group.local) / group.local
        crosses = outside / self._network_rate(uplink) > inside / self.node_bytes_per_ns
        ring_ns: float = node.base_ns + passes * (
            (ranks - nodes) * node.step_ns + (nodes > 1) * nodes * network.step_ns
        )
        if kind is CollectiveKind.ALL_TO_ALL:
            ring_ns = node.base_ns + (network.step_ns if nodes > 1 else node.step_ns)
        elif nodes > 1 and kind is not CollectiveKind.SEND and not network.all_reduce_only:
            moved_ns = max(outside / self._network_rate(uplink), inside / self.node_bytes_per_ns)
            ring_ns = _of_nccl(ring_ns, moved_ns, size_bytes / ranks)
        latency_ns = ring_ns
        if kind is CollectiveKind.ALL_REDUCE and nodes > 1 and not network.ring_only:
            tree_ns = node.base_ns + passes * (
                (group.local - 1) * node.step_ns + ceil(log2(nodes)) * network.step_ns
            )
            latency_ns = min(ring_ns, tree_ns)
        if crosses:
            found = Transfer(True, outside, latency_ns, uplink, inside / outside, passes)
            return found if group.local > 1 else self._as_measured(wanted, ranks, size_bytes, found)
        other = outside / inside if inside else 0.0
        return Transfer(False, inside, latency_ns, uplink * other, other, passes)

    def send(self, size_bytes: float, source: int, target: int) -> Transfer:
        """A message from one rank to another.

        With rails, what is for a GPU of another rail is sent from the GPU of that rail in the same
        node (NCCL's PXN, which sends and receives always use by default). So it does not cross the
        spine for that.
        """
        node, network = self.cluster.node, self.cluster.network
        nodes, gpus = zip(*(divmod(rank, node.gpus) for rank in (source, target)), strict=True)
        latency_ns = float(node.base_ns / 2)
        if nodes[0] == nodes[1]:
            slowdown = self._slowdown(Group(2, 1, self._pairs(source, target)))
            return Transfer(False, size_bytes * slowdown, latency_ns + node.step_ns)
        relayed = float(network.rails and gpus[0] != gpus[1])
        crosses = float(self.cluster.leaf(nodes[0]) != self.cluster.leaf(nodes[1]))
        found = Transfer(True, size_bytes, latency_ns + network.step_ns, crosses, relayed)
        return self._as_measured(CollectiveKind.SEND, 2, size_bytes, found)

    def _pairs(self, source: int, target: int) -> tuple[tuple[int, ...], ...]:
        """The GPUs of messages between the same stages as these ranks are on, within a node."""
        gpus, per_stage = self.cluster.node.gpus, self._mesh.ranks // self._mesh.pp
        first = source // per_stage * per_stage
        pairs = {
            tuple(sorted((one % gpus, (one + target - source) % gpus)))
            for one in range(first, first + min(per_stage, gpus))
            if one // gpus == (one + target - source) // gpus
        }
        return tuple(sorted(pairs))

    def _shares(self, local: int) -> float:
        """The rate of one adapter over a rank's share, of which a group has ``local`` in a node."""
        network = self.cluster.network
        adapter_bytes_per_s = network.adapter_bits_per_s / 8
        return min(float(local), max(1.0, adapter_bytes_per_s / self.cluster.network_bytes_per_s))

    def _as_measured(
        self, kind: CollectiveKind, ranks: int, size_bytes: float, transfer: Transfer
    ) -> Transfer:
        """A transfer that takes as long as it was measured to, if it was.

        Its latency is that of the model. For the rest of the time its links are in use: where a
        collective takes longer than its bytes need, others do not get the rate that is left.
        """
        times = self.cluster.collectives
        if times is None:
            return transfer
        takes_ns = times.ratio(kind.value, ranks, size_bytes) * self.alone_ns(transfer)
        latency_ns = min(transfer.latency_ns, takes_ns)
        size = (takes_ns - latency_ns) * self.rate(transfer)
        return replace(transfer, size_bytes=size, latency_ns=latency_ns)

    def _slowdown(self, group: Group) -> float:
        """How much slower rings over single NVLinks are than a GPU's links together.

        Groups of one node need not be alike; the slowest one counts.
        """
        node = self.cluster.node
        if not node.links:
            return 1.0
        groups = group.gpus or (tuple(range(group.local)),)
        rings = min(ring_count(node.links, gpus) for gpus in groups)
        return node.gpu_bytes_per_s / (rings * node.link_bytes_per_s)


def _of_nccl(ring_ns: float, moved_ns: float, chunk_bytes: float) -> float:
    """The latency of a ring of NCCL between nodes, whose bytes take ``moved_ns``.

    Each step sends ``chunk_bytes``. Fitted on SimAI's all-reduces of 16 MiB to 16 GiB on 16 to
    1,024 GPUs, whose times stay the same over a range of sizes.
    """
    if chunk_bytes < _SMALL_CHUNK_BYTES:
        return _LOW_LATENCY * ring_ns
    return max(_EXPOSED * ring_ns, ring_ns - moved_ns)


def uplink_part(kind: CollectiveKind, group: Group) -> float:
    """The bytes that leave a rank's leaf switch, over those that leave its node.

    A ring leaves each leaf once, and so crosses the uplinks once where it crosses as many adapters
    as the group has nodes below the leaf. With rails, it stays on its own, and what goes to all
    changes to the rail of its target in the node, so the same part leaves a set of leaves.
    """
    if group.leaves == 1:
        return 0.0
    if kind is CollectiveKind.ALL_TO_ALL:
        return (group.ranks - group.ranks / group.leaves) / (group.ranks - group.local)
    return group.leaves / group.nodes


@dataclass(frozen=True)
class OneCollective:
    """A collective of one rank in each of ``ranks`` nodes, which do nothing else meanwhile.

    A rank that is alone in its node has a whole adapter, also where GPUs of a node share one.

    ``size_bytes``: its whole tensor. A point-to-point one is a message to the next node.
    """

    kind: CollectiveKind
    ranks: int
    size_bytes: float

    def time_ns(self, cluster: Cluster) -> float:
        """How long it takes."""
        gpus = min(cluster.node.gpus, cluster.network.adapters)
        lone = replace(cluster, node=replace(cluster.node, gpus=gpus))
        costs = CollectiveCosts(lone, Mesh(dp=self.ranks * gpus))
        if self.kind is CollectiveKind.SEND:
            return costs.alone_ns(costs.send(self.size_bytes, 0, gpus))
        return costs.alone_ns(costs.transfer(self.kind, Group(1, self.ranks), self.size_bytes))
