"""Collectives: bytes against formulas, and groups against the placement of ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from byteprophet.simulate.clusters.description import find_cluster
from byteprophet.simulate.compile.steps import CollectiveKind
from byteprophet.simulate.costs.collectives import CollectiveCosts, Group, OneCollective
from byteprophet.simulate.costs.link_rings import ring_count
from byteprophet.simulate.costs.sources import with_collectives
from byteprophet.simulate.operation.mesh import Mesh

_ALL_REDUCE, _GATHER = CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER
_SCATTER, _ALL_TO_ALL = CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_TO_ALL


def _costs(cluster: str = "dgx-h100", **mesh: int) -> CollectiveCosts:
    return CollectiveCosts(find_cluster(cluster), Mesh(**mesh))


def test_groups_are_where_megatron_places_them() -> None:
    costs = _costs("dgx-a100", tp=4, dp=8, pp=2)
    assert costs.group(("tp",)) == Group(local=4, nodes=1)
    assert costs.group(("dp",)) == Group(local=2, nodes=4)
    assert costs.group(("tp", "dp")) == Group(local=8, nodes=4)
    assert _costs("dgx-a100", tp=16, dp=2).group(("tp",)) == Group(local=8, nodes=2)


@pytest.mark.parametrize("ranks", [2, 3, 8, 64])
def test_a_ring_over_the_network_moves_the_bytes_of_the_formula(ranks: int) -> None:
    """Thakur et al. 2005: (n - 1) / n of the tensor for each half of an all-reduce."""
    costs, size = _costs(dp=8), 1 << 30
    own = find_cluster("dgx-h100").node.own_step
    for kind, passes in ((_ALL_REDUCE, 2), (_GATHER, 1), (_SCATTER, 1)):
        transfer = costs.transfer(kind, Group(local=1, nodes=ranks), size)
        assert transfer.between_nodes
        assert transfer.size_bytes == pytest.approx(passes * (ranks - 1 + own) / ranks * size)


def test_an_all_reduce_costs_as_much_as_its_halves() -> None:
    costs, size = _costs(dp=8), 1 << 28
    for group in (Group(8, 1), Group(1, 16), Group(8, 4)):
        whole, half, other = (
            costs.transfer(kind, group, size) for kind in (_ALL_REDUCE, _SCATTER, _GATHER)
        )
        assert whole.size_bytes == pytest.approx(half.size_bytes + other.size_bytes)
        assert whole.between_nodes == half.between_nodes == other.between_nodes


def test_more_ranks_per_node_need_less_of_each_adapter() -> None:
    costs, size = _costs(dp=8), 1 << 30
    alone = costs.transfer(_ALL_REDUCE, Group(1, 8), size)
    together = costs.transfer(_ALL_REDUCE, Group(8, 8), size)
    per_byte = [transfer.size_bytes / costs.rate(transfer) for transfer in (alone, together)]
    assert per_byte[1] < per_byte[0] / 4


@pytest.mark.parametrize("kind", [_ALL_REDUCE, _GATHER])
def test_a_part_of_a_large_rings_latency_passes_while_bytes_travel(kind: CollectiveKind) -> None:
    cluster = find_cluster("dgx-h100")
    ring = replace(cluster, network=replace(cluster.network, ring_only=True))
    costs = CollectiveCosts(ring, Mesh(dp=8))
    times, latencies = [], []
    for exponent in range(12, 36):
        transfer = costs.transfer(kind, Group(8, 64), float(1 << exponent))
        times.append(costs.alone_ns(transfer))
        latencies.append(transfer.latency_ns)
    assert times == sorted(times)
    steps_ns = (1 + (kind is _ALL_REDUCE)) * (448 * ring.node.step_ns + 64 * ring.network.step_ns)
    whole_ns = ring.node.base_ns + steps_ns
    assert latencies[0] < 0.7 * whole_ns  # with the low-latency protocol
    assert max(latencies) <= whole_ns
    assert latencies[-1] < 0.7 * whole_ns
    at = latencies.index(max(latencies))  # the smallest that has the protocol for large ones
    assert times[at] == pytest.approx(whole_ns)


def test_gloos_rings_have_all_of_their_latency() -> None:
    cluster = find_cluster("dgx-h100")
    gloo = replace(cluster, network=replace(cluster.network, ring_only=True, all_reduce_only=True))
    costs = CollectiveCosts(gloo, Mesh(dp=8))
    sizes = [1 << 12, 1 << 22, 1 << 34]
    assert len({costs.transfer(_ALL_REDUCE, Group(1, 8), size).latency_ns for size in sizes}) == 1


def test_all_to_all_sends_only_what_leaves_the_node_over_the_network() -> None:
    costs, size = _costs(dp=8), 1 << 30
    transfer = costs.transfer(_ALL_TO_ALL, Group(local=8, nodes=2), size)
    assert transfer.between_nodes
    assert transfer.size_bytes == pytest.approx(size / 2)
    inside = costs.transfer(_ALL_TO_ALL, Group(local=8, nodes=1), size)
    assert not inside.between_nodes
    assert inside.size_bytes == pytest.approx(7 / 8 * size)


def test_one_rank_needs_nothing() -> None:
    transfer = _costs().transfer(_ALL_REDUCE, Group(1, 1), 1 << 30)
    assert (transfer.size_bytes, transfer.latency_ns) == (0, 0)


def test_rings_over_single_nvlinks() -> None:
    """A complete graph of n GPUs has (n - 1) / 2 cycles that share no edge, for odd n (Walecki)."""
    for gpus in (3, 5, 7):
        complete = tuple((one, two, 1) for two in range(gpus) for one in range(two))
        assert ring_count(complete, tuple(range(gpus))) == gpus - 1
    assert ring_count(((0, 1, 3),), (0, 1)) == 3
    links = find_cluster("dgx-1v").node.links
    assert ring_count(links, tuple(range(8))) == 6  # the six NVLinks of each GPU, all in use
    assert ring_count(links, (0, 4)) == 2
    assert ring_count(links, (3, 7)) == 1


def test_the_slowest_group_of_a_node_counts() -> None:
    """With tp = 4, the dp groups of a DGX-1 are GPUs 0 and 4 (two NVLinks), ..., 3 and 7 (one)."""
    costs = _costs("dgx-1v", tp=4, dp=2)
    group = costs.group(("dp",))
    assert group.gpus == ((0, 4), (1, 5), (2, 6), (3, 7))
    two, one = (
        costs.transfer(_ALL_REDUCE, Group(2, 1, (gpus,)), 1 << 20).size_bytes
        for gpus in ((0, 4), (3, 7))
    )
    assert costs.transfer(_ALL_REDUCE, group, 1 << 20).size_bytes == one == 2 * two


def test_a_message_in_a_node_has_the_nvlinks_between_its_gpus() -> None:
    costs, size = _costs("dgx-1v", pp=8), 1 << 30
    node = costs.cluster.node

    def rate(source: int, target: int) -> float:
        transfer = costs.send(size, source, target)
        time_ns = costs.alone_ns(transfer) - transfer.latency_ns
        return size / time_ns * 1e9 / (node.link_bytes_per_s * node.efficiency)

    assert rate(0, 3) == rate(3, 0) == pytest.approx(2)
    assert rate(3, 7) == rate(15, 11) == pytest.approx(1)
    assert rate(0, 7) == pytest.approx(1)  # relayed
    costs = _costs("dgx-1v", pp=2, tp=4)  # of 0 to 4, 1 to 5, 2 to 6 and 3 to 7, the slowest counts
    assert rate(0, 4) == rate(3, 7) == pytest.approx(1)
    costs = _costs("dgx-1v", pp=4, tp=2)
    assert rate(0, 2) == rate(3, 1) == pytest.approx(1)
    assert rate(2, 4) == pytest.approx(1)


@pytest.mark.parametrize("adapters", [4, 8])
@pytest.mark.parametrize("local", [1, 2, 8])
def test_a_ring_of_messages_leaves_a_node_over_one_adapter(adapters: int, local: int) -> None:
    """Or over as much of it as the group's ranks have, beside those of other groups."""
    cluster = find_cluster("dgx-h100")
    cluster = replace(cluster, network=replace(cluster.network, adapters=adapters))
    costs, size = CollectiveCosts(cluster, Mesh(dp=16)), float(1 << 32)
    found = costs.transfer(CollectiveKind.SEND, Group(local, 2), size)
    hops = (2 * local - 1) / (2 * local) * size
    share = cluster.network_bytes_per_s
    rate = min(cluster.network.adapter_bits_per_s / 8, local * share) / 1e9
    expected_ns = hops / (rate * cluster.network.efficiency)
    assert costs.alone_ns(found) - found.latency_ns == pytest.approx(expected_ns)


@pytest.mark.parametrize("adapters", [1, 8, 16])
def test_a_rank_that_was_measured_alone_had_a_whole_adapter(adapters: int) -> None:
    """GPUs of a node that communicate at once share it, however fast one of them is alone."""
    size, cluster = 1 << 30, find_cluster("dgx-h100")
    network = replace(cluster.network, adapters=adapters)
    alone = replace(cluster, network=network, node=replace(cluster.node, gpus=min(8, adapters)))
    for kind in (_ALL_REDUCE, CollectiveKind.SEND):
        measured_ns = OneCollective(kind, 2, size).time_ns(alone)
        modelled = replace(cluster, network=network)
        measured = with_collectives(modelled, [(kind.value, 2, size, measured_ns)])
        assert OneCollective(kind, 2, size).time_ns(measured) == pytest.approx(measured_ns)
        found = []
        for one in (modelled, measured):
            costs = CollectiveCosts(one, Mesh(tp=8, dp=2))
            ring = costs.transfer(kind, costs.group(("dp",)), size)
            message = costs.send(size, 0, 8)
            found.append([costs.alone_ns(each) for each in (ring, message)])
        assert found[1] == pytest.approx(found[0])


@pytest.mark.parametrize("kind", list(CollectiveKind))
def test_ranks_that_are_alone_in_their_nodes_use_no_links_in_them(kind: CollectiveKind) -> None:
    """Slow links in nodes were taken for the limit, and then measured times did not count."""
    size, cluster, seven_s = 1 << 30, find_cluster("dgx-h100"), 7e9
    found = []
    for rate in (10**9, 450 * 10**9):
        modelled = replace(cluster, node=replace(cluster.node, gpus=1, gpu_bytes_per_s=rate))
        measured = with_collectives(modelled, [(kind.value, 4, size, seven_s)])
        for one in (modelled, measured):
            costs = CollectiveCosts(one, Mesh(dp=4))
            found.append(costs.alone_ns(costs.transfer(kind, Group(local=1, nodes=4), size)))
    assert found[:2] == found[2:]
    if kind is CollectiveKind.SEND:  # a message was measured, and not parts that go around
        assert found[1] > 10 * found[0]
    else:
        assert found[1] == pytest.approx(seven_s)
