"""What a limiter lets pass at once after a pause, in replays of whole jobs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from byteprophet.bound import bound_ns
from byteprophet.job import Bucket, Cluster, Costs, Host, Job, Model, Parameter, Strategy, Times
from byteprophet.job.staleness import with_staleness
from byteprophet.job.strategy import Delay
from byteprophet.network.namespaces import PAYLOAD_BURST_BYTES
from byteprophet.replay.predict import kind_of
from byteprophet.replay.what_if import Changes

MS = 1_000_000
RATE_BPS = 400_000_000
BURST_BYTES = 250_000
BURST_NS = BURST_BYTES * 8 * 10**9 // RATE_BPS
GLOO = ("ddp", "wfbp", "fsdp2")


def job(
    runtime: str,
    size_bytes: int = 6_000_000,
    *,
    ranks: int = 2,
    burst_bytes: int = 0,
    backward_ms: int = 30,
    waits_for_all: bool = False,
) -> Job:
    """One gradient, ready at the end of the backward pass; 10 ms of forward pass."""
    shape = ranks, 12, 1
    times = Times(
        np.full(shape, 10 * MS),
        np.full(shape, backward_ms * MS),
        np.full(shape[:2], backward_ms * MS),
        np.zeros(shape, np.int64),
        waits_for_all=waits_for_all,
    )
    host = Host(RATE_BPS, RATE_BPS, burst_bytes)
    strategy = Strategy(runtime, (Bucket(("a",), 0, 1),))
    model = Model((Parameter("a", size_bytes),))
    return Job(model, times, Cluster((host,) * ranks), strategy)


def iteration_ns(one: Job) -> int:
    """A late iteration: the first ones find links that have been idle for long."""
    return int(np.median(kind_of(one).iterations_ns(one)[6:]))


@pytest.mark.parametrize("runtime", ["allreduce", *GLOO])
def test_a_burst_passes_at_once(runtime: str) -> None:
    """Each collective, or half of an all-reduce, begins after a pause, and gains as much."""
    plain, limited = (job(runtime, burst_bytes=burst) for burst in (0, BURST_BYTES))
    gained_ns = iteration_ns(plain) - iteration_ns(limited)
    assert gained_ns >= BURST_NS - 1000
    assert iteration_ns(limited) >= bound_ns(limited)


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 7])
def test_all_ranks_have_a_burst(ranks: int) -> None:
    """Each sends to several others at once, which share it."""
    plain, limited = (job("allreduce", ranks=ranks, burst_bytes=b) for b in (0, BURST_BYTES))
    gained_ns = iteration_ns(plain) - iteration_ns(limited)
    assert gained_ns == pytest.approx(BURST_NS, rel=0.01)


def test_a_rate_that_is_asked_for_is_that_of_our_limiter() -> None:
    one = job("allreduce")
    kind = kind_of(one)
    (host,) = set(kind.change(one, Changes(bandwidth_bps=100_000_000)).cluster.workers)
    assert host.burst_bytes == PAYLOAD_BURST_BYTES
    assert 0 < host.up_bps == host.down_bps < 100_000_000
    (host,) = set(kind.change(one, Changes(bandwidth_bps=0)).cluster.workers)
    assert host == Host()


@pytest.mark.parametrize("clips", [False, True])
def test_clipping_waits_for_the_averages_that_the_step_uses(clips: bool) -> None:
    """Those of the step before, if all are one step late: docs/staleness.md."""
    now = job("dear", 1_000_000, waits_for_all=clips)
    late = replace(now, strategy=with_staleness(now.strategy, [Delay("a", 1)]))
    assert iteration_ns(late) == 40 * MS
    assert iteration_ns(now) == 60 * MS


def test_the_hand_over_of_the_last_bucket_is_not_behind_its_average() -> None:
    costs = Costs(bucket_ns=3 * MS)
    jobs = (job("ddp", 1_000_000, waits_for_all=clips) for clips in (False, True))
    free_ns, clipped_ns = (
        iteration_ns(replace(one, cluster=replace(one.cluster, costs=costs))) for one in jobs
    )
    assert free_ns == clipped_ns
