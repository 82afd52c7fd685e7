"""Ranks share adapters and leaf switches as their machines do."""

from __future__ import annotations

from dataclasses import replace

from byteprophet.graph import GraphBuilder
from byteprophet.simulate.clusters.description import find_cluster
from byteprophet.simulate.costs.collectives import CollectiveCosts
from byteprophet.simulate.execute.simulate import simulate_program
from byteprophet.simulate.execute.wiring import Ports, Wiring
from byteprophet.simulate.operation.mesh import Mesh

from ..jobs import program


def _ports(mesh: Mesh, members: list[int], **network: object) -> tuple[list[Ports], list[int]]:
    cluster = find_cluster("dgx-a100")
    cluster = replace(cluster, network=replace(cluster.network, **network))  # type: ignore[arg-type]
    builder = GraphBuilder()
    wiring = Wiring(builder, mesh, CollectiveCosts(cluster, mesh), members)
    per_stage = mesh.ranks // mesh.pp
    ranks = [at * per_stage + member for at in range(mesh.pp) for member in members]
    ports = [wiring.ports(str(rank), rank) for rank in ranks]
    return ports, [link.capacity_bps or 0 for link in builder.freeze().links]


def test_pipeline_ranks_share_the_adapter_that_is_theirs() -> None:
    ports, rates = _ports(Mesh(pp=16), [0], adapters=4)
    assert ports[0].adapter == ports[1].adapter != ports[2].adapter
    assert ports[0].node != ports[1].node
    own, own_rates = _ports(Mesh(tp=2, pp=8), [0], adapters=4)
    assert len({one.adapter for one in own}) == 8
    assert rates[ports[0].adapter[0]] == 2 * own_rates[own[0].adapter[0]]


def test_leaf_links_have_the_rate_of_the_ranks_below() -> None:
    folded, rates = _ports(Mesh(tp=8, pp=8), [0], nodes_per_leaf=4, uplink_share=0.5)
    assert len({one.leaf for one in folded}) == 2
    whole, all_rates = _ports(Mesh(tp=8, pp=8), list(range(8)), nodes_per_leaf=4, uplink_share=0.5)
    assert len({one.leaf for one in whole}) == 2
    assert all_rates[whole[0].leaf[0]] == 8 * rates[folded[0].leaf[0]]
    assert rates[folded[0].leaf[0]] == 4 * 0.5 * rates[folded[0].adapter[0]]
    rails, _ = _ports(Mesh(tp=8, pp=8), list(range(8)), nodes_per_leaf=4, rails=True)
    assert len({one.leaf for one in rails}) == 16


def test_oversubscription_slows_what_crosses_it() -> None:
    compiled = program("gpt3-1.3b", "dp=64 overlap=0", 64)
    plain = find_cluster("dgx-a100")
    times = [
        simulate_program(
            compiled,
            replace(
                plain,
                network=replace(plain.network, nodes_per_leaf=per_leaf, uplink_share=0.2),
            ),
        ).iteration_ns
        for per_leaf in (0, 8, 4, 1)
    ]
    assert times[0] == times[1] < times[2] < times[3] or times[0] == times[1] == times[2] < times[3]
