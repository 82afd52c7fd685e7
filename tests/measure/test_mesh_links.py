"""The links of jobs of native/exchange, from when operations began and ended in their replays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from byteprophet.allreduce.strategies import strategy_for
from byteprophet.errors import UserError
from byteprophet.graph.mesh_graph import build
from byteprophet.job import Cluster, Costs, Host, Job
from byteprophet.job.strategy import ALL_REDUCE
from byteprophet.measure.collectives import ALL_GATHER, REDUCE_SCATTER
from byteprophet.measure.links import configured_mesh_links, measure_mesh_links
from byteprophet.network.namespaces import PAYLOAD_BURST_BYTES
from byteprophet.replay import replay

from ..graph.test_mesh_graph import MS, job

RATE_BPS = 400_000_000
HOST_NS_PER_BYTE = 3.0

Operations = list[dict[tuple[int, str], tuple[int, int, int]]]


def operations_of(one: Job) -> Operations:
    """By rank, by iteration and name: begin, end and bytes, as spans of a recording."""
    built = build(one)
    replayed = replay(built.graph)
    sizes = [
        sum(one.model.sizes_bytes[one.model.places[name]] for name in bucket.parameters)
        for bucket in one.strategy.buckets
    ]
    found: Operations = []
    for rank in range(one.workers):
        own: dict[tuple[int, str], tuple[int, int, int]] = {}
        for iteration in range(1, one.iterations):
            for bucket, size_bytes in enumerate(sizes):
                at = rank, iteration, bucket
                start_ns, averaged_ns, gathered_ns = (
                    int(replayed.end_ns[each[at]])
                    for each in (built.start, built.averaged, built.gathered)
                )
                own[iteration, f"{REDUCE_SCATTER}1.{bucket}"] = start_ns, averaged_ns, size_bytes
                own[iteration, f"{ALL_GATHER}1.{bucket}"] = averaged_ns, gathered_ns, size_bytes
        found.append(own)
    return found


@pytest.mark.parametrize("slow", [0, 1, 2])
def test_what_bytes_take_beyond_unequal_limits_is_the_hosts_part(
    slow: int,
) -> None:
    """Buckets of many sizes, with pauses between most of them."""
    noise = np.random.default_rng(1)
    sizes = tuple((noise.integers(1, 40, 12) * 100_000).tolist())
    ready = tuple((np.arange(12)[::-1] * 400 * MS).tolist())
    limits_bps = [RATE_BPS] * (4 - slow) + [RATE_BPS // 2] * slow
    one = job(4, sizes, (MS,) * 12, ready)
    one = replace(
        one,
        cluster=Cluster(
            tuple(Host(rate, rate) for rate in limits_bps),
            costs=Costs(host_ns_per_byte=HOST_NS_PER_BYTE),
        ),
    )
    one = replace(one, strategy=strategy_for(one, ALL_REDUCE, bucket_bytes=1))
    cluster = measure_mesh_links(operations_of(one), limits_bps)
    assert [host.up_bps for host in cluster.workers] == limits_bps
    slowest_ns = 8e9 / min(limits_bps)
    found_ns = slowest_ns + cluster.costs.host_ns_per_byte
    assert found_ns == pytest.approx(slowest_ns + HOST_NS_PER_BYTE, rel=0.1)


def test_links_of_unequal_owners_are_the_configured_ones() -> None:
    cluster = configured_mesh_links([RATE_BPS, RATE_BPS // 2])
    rates_bps = (RATE_BPS, RATE_BPS // 2)
    assert cluster == Cluster(tuple(Host(rate, rate, PAYLOAD_BURST_BYTES) for rate in rates_bps))
    with pytest.raises(UserError, match="own unequal shards, and not all links were limited"):
        configured_mesh_links([RATE_BPS, None])
