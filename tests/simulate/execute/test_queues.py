"""Queues in front of links that others keep busy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from byteprophet.graph.model import Connection
from byteprophet.simulate.clusters.description import find_cluster
from byteprophet.simulate.costs.blocks import Spent
from byteprophet.simulate.execute.result import Simulated
from byteprophet.simulate.execute.simulate import simulate_program

from ..jobs import program

_MODEL = "gpt:layers=6,hidden=1024,heads=16,tied=0"
_QUEUE_NS = 3_000_000


def _simulated(line: str, queue_ns: int) -> Simulated:
    """On nodes of one GPU each, with a slow network."""
    cluster = find_cluster("a100-4xhdr")
    network = replace(
        cluster.network, adapters=1, adapter_bits_per_s=10_000_000_000, queue_ns=queue_ns
    )
    slow = replace(cluster, node=replace(cluster.node, gpus=1), network=network)
    return simulate_program(program(_MODEL, line, 4), slow)


def _meets(result: Simulated, operation: int) -> bool:
    """Whether another transfer is on one of its links when it starts."""
    graph, start_ns, end_ns = result.job.graph, result.replayed.start_ns, result.replayed.end_ns

    def links(of: int) -> set[int]:
        connection = graph.devices[graph.device[of]]
        assert isinstance(connection, Connection)
        return set(connection.route)

    return any(
        links(operation) & links(other) and start_ns[other] <= start_ns[operation] < end_ns[other]
        for other in np.flatnonzero(graph.size_bytes > 0).tolist()
        if other != operation
    )


@pytest.mark.parametrize("line", ["tp=2 dp=2", "tp=2 sp=1 dp=2", "pp=2 tp=2 micro_batches=4"])
def test_what_meets_others_waits_once_in_each_pass(line: str) -> None:
    without, result = (_simulated(line, queue_ns) for queue_ns in (0, _QUEUE_NS))
    waits = {
        transfer: 2 if use is Spent.ALL_REDUCE else 1
        for record in result.job.ranks
        for transfer, use, _ in record.waited
    }
    waits |= {
        transfer: 1
        for record in result.job.ranks
        for several in record.waits.values()
        for transfer, use in several
        if use is Spent.SEND
    }
    longer_ns = result.job.graph.duration_ns - without.job.graph.duration_ns
    for operation, longer in enumerate(longer_ns.tolist()):
        times = waits[operation] if operation in waits and _meets(without, operation) else 0
        assert longer == times * _QUEUE_NS
    assert longer_ns.any()


@pytest.mark.parametrize("line", ["tp=4", "dp=4", "pp=4 schedule=gpipe"])
def test_what_meets_no_other_waits_for_none(line: str) -> None:
    without, result = (_simulated(line, queue_ns) for queue_ns in (0, _QUEUE_NS))
    assert result.iteration_ns == without.iteration_ns
