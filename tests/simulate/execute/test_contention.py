"""Collectives that operators wait for share links with others; overlap slows kernels down."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from byteprophet.errors import UserError
from byteprophet.graph import Connection
from byteprophet.graph.model import WHOLE
from byteprophet.replay import Replayed, replay
from byteprophet.simulate.clusters.description import Cluster, find_cluster
from byteprophet.simulate.compile.program import Program
from byteprophet.simulate.costs.blocks import BlockCosts, Spent
from byteprophet.simulate.execute.job_graph import JobGraph, build
from byteprophet.simulate.execute.ranks import RankRecord
from byteprophet.simulate.execute.result import by_use

from ..jobs import program

_MODEL = "gpt:layers=8,hidden=4096,heads=32,vocabulary=4096"


def _run(compiled: Program, cluster: Cluster) -> tuple[JobGraph, Replayed]:
    job = build(compiled, BlockCosts(cluster, compiled.strategy.mesh))
    return job, replay(job.graph)


def _slowdowns(replayed: Replayed, record: RankRecord) -> np.ndarray:
    """How many times as long each collective took as it does with all links to itself."""
    graph = replayed.graph
    found = []
    for flow, _, _ in record.waited:
        device = graph.devices[graph.device[flow]]
        assert isinstance(device, Connection)
        uses = zip(device.route, device.weights, strict=True)
        rate = min((graph.links[link].capacity_bps or 0) * WHOLE / weight for link, weight in uses)
        alone_ns = graph.duration_ns[flow] + graph.size_bytes[flow] * 8e9 / rate
        found.append((replayed.end_ns[flow] - replayed.start_ns[flow]) / alone_ns)
    return np.array(found)


def test_what_shares_no_link_is_a_part_of_its_operators_time() -> None:
    job, _ = _run(program(_MODEL, "tp=8 dp=8 micro_batches=2", 64), find_cluster("dgx-h100"))
    assert not job.ranks[0].waited


def test_collectives_across_nodes_are_slower_beside_gradients() -> None:
    """Gradients travel during the last backward pass only: what comes before is as if alone."""
    compiled = program(_MODEL, "tp=16 dp=4 micro_batches=2", 64)
    job, replayed = _run(compiled, find_cluster("dgx-h100"))
    slowdowns = _slowdowns(replayed, job.ranks[0])
    first, last = np.split(slowdowns, 2)  # by micro-batch
    assert first == pytest.approx(1, abs=1e-4)
    assert last.min() == pytest.approx(1, abs=1e-4)
    assert 1.3 < last.max() <= 2.0001
    late, _ = _run(
        program(_MODEL, "tp=16 dp=4 micro_batches=2 overlap=0", 64), find_cluster("dgx-h100")
    )
    assert not late.ranks[0].waited


def test_a_link_carries_no_more_than_it_can() -> None:
    compiled = program(_MODEL, "tp=16 dp=4 zero=3 micro_batches=2", 64)
    _, replayed = _run(compiled, find_cluster("dgx-h100"))
    rates = np.array([link.capacity_bps for link in replayed.graph.links])
    assert (8e9 * replayed.link_bytes <= rates * (replayed.link_busy_ns + 1.0)).all()


def _overlap_ns(replayed: Replayed, record: RankRecord, flows: list[int]) -> int:
    """The time in which the rank computes while one of the flows is under way."""
    spans = sorted((int(replayed.start_ns[flow]), int(replayed.end_ns[flow])) for flow in flows)
    total = 0
    for operation in record.computed:
        begin, end = int(replayed.start_ns[operation]), int(replayed.end_ns[operation])
        now = begin
        for first, last in spans:
            total += max(0, min(end, last) - max(now, first))
            now = max(now, min(end, last))
    return total


@pytest.mark.parametrize("line", ["dp=64 micro_batches=2", "dp=64 micro_batches=2 zero=3"])
def test_kernels_beside_collectives_take_longer(line: str) -> None:
    """By the factor, for as long as they overlap, and not otherwise."""
    cluster = find_cluster("dgx-h100")
    cluster = replace(cluster, gpu=replace(cluster.gpu, overlap_slowdown=0.25))
    compiled = program(_MODEL, line, 64)
    job, replayed = _run(compiled, cluster)
    record = job.ranks[0]
    flows = [flow for flow, _ in record.synchronised]
    flows += [flow for waits in record.waits.values() for flow, _ in waits]
    beside_ns = _overlap_ns(replayed, record, flows)
    slowed_ns = by_use(replayed, job.ranks)[Spent.SLOWED]
    assert beside_ns > 0
    assert slowed_ns == pytest.approx(beside_ns * 0.25 / 1.25, abs=2 * len(record.computed))


def test_collectives_beside_kernels_take_longer() -> None:
    fast = find_cluster("dgx-h100")
    slow = replace(fast, gpu=replace(fast.gpu, collective_slowdown=1.0))
    compiled = program(_MODEL, "dp=64 zero=3 micro_batches=2", 64)
    took_ns = []
    for cluster in (fast, slow):
        job, replayed = _run(compiled, cluster)
        flows = [flow for flow, _ in job.ranks[0].synchronised]
        took_ns.append(int((replayed.end_ns[flows] - replayed.start_ns[flows]).sum()))
    assert 1.2 * took_ns[0] < took_ns[1] < 2 * took_ns[0]


def test_too_large_graphs_have_no_collectives_of_their_own() -> None:
    line = "tp=16 dp=4 micro_batches=100000"
    job, _ = _run(program(_MODEL, line, 64), find_cluster("dgx-h100"))
    assert not job.ranks[0].waited
    with pytest.raises(UserError, match="more than 4,000,000 operations"):
        _run(program(_MODEL, "dp=64 zero=3 micro_batches=300000", 64), find_cluster("dgx-h100"))
