"""A folded graph has the times of the graph with all ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from byteprophet.replay import replay
from byteprophet.simulate.clusters.description import find_cluster
from byteprophet.simulate.compile.program import compile_program
from byteprophet.simulate.costs.blocks import BlockCosts
from byteprophet.simulate.execute.job_graph import build as build_graph
from byteprophet.simulate.execute.result import by_use
from byteprophet.simulate.models.transformer import build

from ...thorough import by_default
from ..jobs import program, random_cluster, random_job


@pytest.mark.parametrize("seed", by_default(range(200), range(40)))
def test_one_rank_stands_for_all_that_are_alike(seed: int) -> None:
    config, strategy = random_job(seed)
    cluster = random_cluster(seed)
    compiled = compile_program(build("small", config, strategy.samples), strategy)
    costs = BlockCosts(cluster, strategy.mesh)
    folded = build_graph(compiled, costs)
    unfolded = build_graph(compiled, costs, folded=False)
    one, all_ranks = replay(folded.graph), replay(unfolded.graph)
    assert one.makespan_ns == all_ranks.makespan_ns
    for few, many in zip(folded.ranks, unfolded.ranks, strict=True):
        assert one.peak_bytes[few.pool] == all_ranks.peak_bytes[many.pool]
        last, of_all = few.computed[-1], many.computed[-1]
        assert one.start_ns[last] == all_ranks.start_ns[of_all]
    if strategy.mesh.ranks > strategy.mesh.pp:
        assert len(unfolded.graph) > len(folded.graph)


@pytest.mark.parametrize("seed", range(8))
def test_uses_add_up_to_the_iteration(seed: int) -> None:
    config, strategy = random_job(seed)
    compiled = compile_program(build("small", config, strategy.samples), strategy)
    job = build_graph(compiled, BlockCosts(find_cluster("dgx-a100"), strategy.mesh))
    replayed = replay(job.graph)
    uses = by_use(replayed, job.ranks)
    assert sum(uses.values()) == replayed.makespan_ns
    assert min(uses.values()) >= -len(uses)  # rounding of averages


def test_one_pipeline_rank_takes_the_sum_of_its_passes() -> None:
    compiled = program("gpt2", "micro_batches=3", 1)
    costs = BlockCosts(find_cluster("dgx-a100"), compiled.strategy.mesh)
    job = build_graph(compiled, costs)
    times = [costs.time(block.compiled) for block in compiled.stages[0].blocks]
    passes = sum(
        one.time_ns for time in times for (one,) in (time.forward, time.backward, time.weight)
    )
    optimizer = job.ranks[0].spent[-1].time_ns
    assert replay(job.graph).makespan_ns == 3 * passes + optimizer


def test_1f1b_has_the_known_bubble() -> None:
    """With equal stages and no transfers to speak of: (pp - 1) / micro-batches of the work."""
    model = "gpt:layers=64,hidden=4096,heads=32,vocabulary=64"
    compiled = program(model, "pp=4 micro_batches=8", 4)
    cluster = find_cluster("dgx-a100")
    cluster = replace(cluster, node=replace(cluster.node, base_ns=1, step_ns=1))
    job = build_graph(compiled, BlockCosts(cluster, compiled.strategy.mesh))
    replayed = replay(job.graph)
    uses = {use.name: time_ns for use, time_ns in by_use(replayed, job.ranks).items()}
    work = uses["FORWARD"] + uses["BACKWARD"] + uses["LAUNCH"]
    assert uses["BUBBLE"] / work == pytest.approx(3 / 8, rel=0.05)


def test_zero_bubble_is_shorter_than_1f1b() -> None:
    times = {}
    for schedule in ("gpipe", "1f1b", "zb1p"):
        line = f"pp=4 micro_batches=8 schedule={schedule}"
        compiled = program("gpt:layers=32,hidden=2048,heads=16", line, 4)
        costs = BlockCosts(find_cluster("dgx-a100"), compiled.strategy.mesh)
        times[schedule] = replay(build_graph(compiled, costs).graph).makespan_ns
    assert times["zb1p"] < times["1f1b"] < 1.02 * times["gpipe"]
