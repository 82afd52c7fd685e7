"""Changes of jobs of two transports, and the simple prediction beside them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from byteprophet.errors import UserError
from byteprophet.job import Cluster, Costs, Host, Job
from byteprophet.network import payload_bps
from byteprophet.replay.mixed import MIXED_KIND, change
from byteprophet.replay.predict import kind_of
from byteprophet.replay.what_if import Changes
from byteprophet.strategy.builders import build

from ..strategy.jobs import served_job

RATE_BPS = 400_000_000


@pytest.fixture
def job() -> Job:
    made = build("mixed", served_job([RATE_BPS] * 4, [RATE_BPS] * 2))
    return replace(made, cluster=replace(made.cluster, mesh_costs=Costs(delay_ns=7)))


def iteration_ns(job: Job) -> int:
    return int(np.median(MIXED_KIND.iterations_ns(job)[2:]))


def test_its_kind_is_found(job: Job) -> None:
    assert kind_of(job) is MIXED_KIND
    told = MIXED_KIND.assumptions(job)
    assert told["runtime"] == "mixed"
    assert told["mesh_delay_ns"] == 7
    assert (told["local_sgd"], told["compressed"]) == (None, 0)
    assert told["servers"] == 2
    assert 0.4 < told["to_servers"] < 0.6


def test_times_follow_links_and_computation(job: Job) -> None:
    base_ns = iteration_ns(job)
    slower = change(job, Changes(bandwidth_bps=RATE_BPS // 2))
    assert slower.cluster.workers[0].up_bps == payload_bps(RATE_BPS // 2)
    assert slower.strategy == job.strategy
    assert iteration_ns(slower) > 1.3 * base_ns
    longer_ns = iteration_ns(change(job, Changes(compute_scale=10.0)))
    assert longer_ns >= 10 * (30 + 60) * 10**6  # forward and backward of tests/strategy/jobs.py
    late = change(job, Changes(link_latency_ns=50_000_000))
    assert late.cluster.mesh_costs is not None
    assert late.cluster.costs.delay_ns == late.cluster.mesh_costs.delay_ns == 50_000_000
    assert iteration_ns(late) > base_ns
    more = change(job, Changes(workers=6))
    assert more.workers == 6
    assert iteration_ns(more) > base_ns  # servers have more to take in


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        (Changes(scheduler="fifo"), "--policy"),
        (Changes(servers=3), "--servers"),
        (Changes(partition_bytes=65536), "--partition-bytes"),
        (Changes(runtime="dear"), "--runtime"),
        (Changes(bucket_bytes=65536), "--bucket-bytes"),
    ],
)
def test_what_the_strategy_decides_is_not_changed(job: Job, changes: Changes, option: str) -> None:
    with pytest.raises(UserError, match=f"{option}: the strategy of a job of two transports"):
        change(job, changes)


def test_daydream_gives_every_gradient_all_links(job: Job) -> None:
    """On links without a limit, nothing but the computation is left."""
    free = replace(job, cluster=Cluster((Host(),) * 4, (Host(),) * 2))
    forward_ns, ready_ns, backward_ns, update_ns = free.times.medians(0)
    expected_ns = backward_ns
    for place, layer_ns in enumerate(forward_ns.tolist()):
        expected_ns = max(expected_ns, int(ready_ns[place] + update_ns[place])) + layer_ns
    assert MIXED_KIND.daydream_ns(free) == expected_ns
    assert MIXED_KIND.daydream_ns(job) > expected_ns
