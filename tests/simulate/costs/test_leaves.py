"""What crosses leaf switches, counted link by link."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, permutations

import pytest

from byteprophet.simulate.clusters.description import Cluster, find_cluster
from byteprophet.simulate.compile.steps import CollectiveKind
from byteprophet.simulate.costs.collectives import CollectiveCosts, Group, uplink_part
from byteprophet.simulate.operation.mesh import Mesh

_ALL_REDUCE, _ALL_TO_ALL = CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_TO_ALL


def _cluster(nodes_per_leaf: int, uplink_share: float = 0.25, *, rails: bool = False) -> Cluster:
    cluster = find_cluster("dgx-h100")
    network = replace(
        cluster.network, nodes_per_leaf=nodes_per_leaf, uplink_share=uplink_share, rails=rails
    )
    return replace(cluster, network=network)


@pytest.mark.parametrize(("nodes", "per_leaf"), [(4, 1), (8, 2), (8, 4), (16, 4), (8, 8)])
def test_a_ring_leaves_each_leaf_once(nodes: int, per_leaf: int) -> None:
    leaf = [node // per_leaf for node in range(nodes)]
    edges = list(pairwise([*range(nodes), 0]))
    crossing = sum(leaf[one] != leaf[other] for one, other in edges)
    group = Group(local=8, nodes=nodes, leaves=len(set(leaf)))
    assert uplink_part(_ALL_REDUCE, group) == pytest.approx(crossing / len(edges))


@pytest.mark.parametrize(("nodes", "per_leaf", "local"), [(4, 1, 1), (8, 2, 4), (4, 2, 8)])
def test_all_to_all_sends_to_every_leaf(nodes: int, per_leaf: int, local: int) -> None:
    node = [rank // local for rank in range(nodes * local)]
    pairs = list(permutations(range(len(node)), 2))
    between_nodes = sum(node[one] != node[other] for one, other in pairs)
    crossing = sum(node[one] // per_leaf != node[other] // per_leaf for one, other in pairs)
    group = Group(local=local, nodes=nodes, leaves=nodes // per_leaf)
    assert uplink_part(_ALL_TO_ALL, group) == pytest.approx(crossing / between_nodes)


def test_a_ring_of_messages_crosses_the_uplinks_of_its_leaves() -> None:
    """One message at a time leaves a leaf, and the group's ranks there have their shares."""
    size, local = float(1 << 32), 8
    costs = CollectiveCosts(_cluster(2, 0.25), Mesh(cp=64))
    found = costs.transfer(CollectiveKind.SEND, costs.group(("cp",)), size)
    together = 2 * local * costs.uplink_bytes_per_ns
    adapter = costs.cluster.network.adapter_bits_per_s / 8e9 * costs.cluster.network.efficiency
    expected_ns = 63 / 64 * size / min(together, adapter)
    assert costs.alone_ns(found) - found.latency_ns == pytest.approx(expected_ns)


def test_uplinks_limit_what_crosses_them_more_than_they_bear() -> None:
    """With a quarter of the rate: rings over four nodes per leaf are as fast, over two half."""
    size = 1 << 30
    free = CollectiveCosts(find_cluster("dgx-h100"), Mesh(tp=8, dp=8))
    alone = free.transfer(_ALL_REDUCE, free.group(("dp",)), size)
    for per_leaf, slower in ((8, 1), (4, 1), (2, 2), (1, 4)):
        costs = CollectiveCosts(_cluster(per_leaf), Mesh(tp=8, dp=8))
        transfer = costs.transfer(_ALL_REDUCE, costs.group(("dp",)), size)
        assert transfer.size_bytes == alone.size_bytes
        assert free.rate(alone) / costs.rate(transfer) == pytest.approx(slower)


def test_messages_between_rails_change_rails_in_the_node() -> None:
    """As NCCL_P2P_PXN_LEVEL is 2 by default."""
    leaf, rails = (
        CollectiveCosts(_cluster(4, rails=rails), Mesh(pp=64)) for rails in (False, True)
    )
    assert [costs.send(1, 0, 8).uplink for costs in (leaf, rails)] == [0, 0]
    assert [costs.send(1, 7, 8).uplink for costs in (leaf, rails)] == [0, 0]
    assert [costs.send(1, 7, 8).other for costs in (leaf, rails)] == [0, 1]
    assert [costs.send(1, 0, 32).uplink for costs in (leaf, rails)] == [1, 1]
    assert [costs.send(1, 0, 7).between_nodes for costs in (leaf, rails)] == [False, False]
