"""Ranks that are slower: the replicas that are simulated stand for all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from byteprophet.errors import UserError
from byteprophet.replay import replay
from byteprophet.simulate.clusters.description import find_cluster
from byteprophet.simulate.compile.program import compile_program
from byteprophet.simulate.costs.blocks import KERNELS, BlockCosts, Spent
from byteprophet.simulate.execute.conditions import Conditions, Replicas
from byteprophet.simulate.execute.job_graph import build as build_graph
from byteprophet.simulate.execute.simulate import simulate_program
from byteprophet.simulate.models.transformer import build
from byteprophet.simulate.operation.mesh import Mesh

from ...thorough import by_default
from ..jobs import program, random_cluster, random_job


def test_equal_replicas_are_one() -> None:
    mesh = Mesh(tp=2, dp=8, pp=2)
    assert Conditions().replicas(mesh).members == [0]
    # Rank 21 is on pipeline rank 1, in the replica of its ranks 4 and 5.
    found = Conditions({21: 1.5}).replicas(mesh)
    assert found.factors == {0: (1.0, 1.0), 4: (1.0, 1.5)}
    # Both ranks of one tensor-parallel group: the slower one counts.
    both = Conditions({20: 1.2, 21: 1.5}).replicas(mesh)
    assert both.factors == found.factors
    assert len(Conditions(jitter=0.1).replicas(mesh).members) == 8


def test_jitter_comes_from_its_seed() -> None:
    mesh = Mesh(dp=16)
    one, same, other = (Conditions(jitter=0.1, seed=seed).replicas(mesh) for seed in (1, 1, 2))
    assert one == same != other


@pytest.mark.parametrize("seed", by_default(range(60), range(20)))
def test_one_replica_stands_for_all_that_are_as_slow(seed: int) -> None:
    config, strategy = random_job(seed)
    mesh = strategy.mesh
    compiled = compile_program(build("small", config, strategy.samples), strategy)
    costs = BlockCosts(random_cluster(seed), mesh)
    conditions = Conditions({seed % mesh.ranks: 1.3, seed * 7 % mesh.ranks: 1.1}, seed=seed)
    replicas = conditions.replicas(mesh)
    few = build_graph(compiled, costs, replicas=replicas)
    stride = mesh.stride("dp")
    of_member = {}
    for member in range(mesh.ranks_per_stage):
        first = member // stride * stride
        places = [at * mesh.ranks_per_stage + first for at in range(mesh.pp)]
        of_member[member] = tuple(
            max(conditions.stragglers.get(rank, 1.0) for rank in range(at, at + stride))
            for at in places
        )
    all_ranks = build_graph(compiled, costs, folded=False, replicas=Replicas(of_member))
    # A pass in parts is rounded for each of them.
    rounding_ns = 2 * len(all_ranks.graph)
    slow_ns, all_ns = replay(few.graph).makespan_ns, replay(all_ranks.graph).makespan_ns
    assert slow_ns == pytest.approx(all_ns, abs=rounding_ns)
    alike_ns = replay(build_graph(compiled, costs).graph).makespan_ns
    assert alike_ns <= slow_ns <= 1.3 * alike_ns + rounding_ns


def test_a_slower_gpu_hides_more_of_what_its_host_does() -> None:
    """Of a job that its host limits, kernels may take longer until they are the limit."""
    compiled = program("gpt2", "dp=1", 1)
    fast = find_cluster("dgx-h100")
    found = {}
    for launch_ns in (1, 20_000, 4_000_000):
        cluster = replace(fast, gpu=replace(fast.gpu, launch_ns=launch_ns))
        alike = simulate_program(compiled, cluster)
        slow = simulate_program(compiled, cluster, Conditions({0: 1.5}))
        update_ns = alike.by_use[Spent.OPTIMIZER]
        passes_ns = sum(alike.by_use[use] for use in KERNELS) - update_ns
        longer_ns = slow.iteration_ns - alike.iteration_ns - 0.5 * update_ns
        found[launch_ns] = longer_ns / passes_ns
    assert found[1] == pytest.approx(0.5, rel=1e-4)
    assert 0.1 < found[20_000] < 0.4
    assert found[4_000_000] == pytest.approx(0, abs=1e-4)


def test_a_slower_gpu_hides_more_of_a_ring_of_keys_and_values() -> None:
    compiled, cluster = program("gpt2", "cp=16 ring=1", 16), find_cluster("dgx-a100")
    slow_links = replace(cluster, network=replace(cluster.network, efficiency=0.01))
    alike, slow = (
        simulate_program(compiled, slow_links, Conditions(dict.fromkeys(range(16), factor)))
        for factor in (1.0, 1.5)
    )
    assert 0 < slow.by_use[Spent.SEND] < alike.by_use[Spent.SEND]


def test_one_straggler_costs_as_much_as_many() -> None:
    compiled = program("gpt3-1.3b", "dp=16 micro_batches=4", 16)
    cluster = find_cluster("dgx-h100")
    alike, one, several = (
        simulate_program(compiled, cluster, Conditions(slow)).iteration_ns
        for slow in ({}, {3: 1.2}, dict.fromkeys(range(8), 1.2))
    )
    assert 1.1 * alike < one == several < 1.2 * alike


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UserError, match=r"straggler 1=0\.5: must be from 1"):
        Conditions({1: 0.5})
    with pytest.raises(UserError, match="jitter 2: must be from 0 to 1"):
        Conditions(jitter=2)
    with pytest.raises(UserError, match="straggler 9: there are only ranks 0 to 7"):
        Conditions({9: 2}).replicas(Mesh(dp=8))
