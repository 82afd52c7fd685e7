"""What is measured in spans is what the all-reduce job was that left them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from byteprophet.errors import UserError
from byteprophet.graph.measured_ring import measure_ring
from byteprophet.graph.ring_graph import build
from byteprophet.graph.ring_job import RingCompute, RingJob, RingNetwork
from byteprophet.replay import replay
from byteprophet.timeline.tables import Kind

from .recorded_ring import config_of, record

LINK_BPS, DELAY_NS = 480_000_000, 120_000
LAYERS = 10


def a_ring(ranks: int = 3, iterations: int = 8, backward_ns: int = 200_000_000) -> RingJob:
    """Ranks that are never quite alike; a bucket of two layers, the last in forward order first."""
    noise = np.random.default_rng(7)
    shape = (ranks, iterations, LAYERS)
    gradient_ns = np.sort(noise.integers(0, backward_ns, shape[1:]))[:, ::-1]
    gradient_ns = gradient_ns + np.sort(noise.integers(0, 10**7, shape))[:, :, ::-1]
    size_bytes = noise.integers(10_000, 2_000_000, LAYERS) * 4
    return RingJob(
        layers=tuple(f"layer{number}.conv" for number in range(LAYERS)),
        size_bytes=tuple(size_bytes.tolist()),
        bucket_bytes=tuple((size_bytes[::-1][::2] + size_bytes[::-1][1::2]).tolist()),
        compute=RingCompute(
            forward_ns=noise.integers(10**6, 10**7, shape),
            gradient_ns=gradient_ns,
            bucket_ns=gradient_ns[:, :, -2::-2],
            update_ns=noise.integers(10**6, 10**7, shape[:2]),
        ),
        network=RingNetwork((LINK_BPS,) * ranks, DELAY_NS),
    )


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("backward_ns", [200_000_000, 2_000_000_000])
def test_a_job_is_measured_as_it_was(ranks: int, backward_ns: int) -> None:
    job = a_ring(ranks, backward_ns=backward_ns)
    found, start_ns = measure_ring(record(job), config_of(job))
    assert (found.layers, found.size_bytes) == (job.layers, job.size_bytes)
    assert found.bucket_bytes == job.bucket_bytes
    for name, times_ns in vars(job.compute).items():
        assert np.array_equal(getattr(found.compute, name), times_ns), name
    if ranks > 1:
        assert found.network.worker_bps == pytest.approx((LINK_BPS,) * ranks, rel=0.02)
    # What is replayed again is what was recorded.
    again = build(found)
    again_ns = np.diff(replay(again.graph).start_ns[again.begin], axis=1)
    assert again_ns.sum() == pytest.approx(np.diff(start_ns, axis=1)[:, :-1].sum(), rel=0.01)


def test_buckets_of_the_first_iterations_may_differ() -> None:
    """As DistributedDataParallel's do, until it has seen the order of gradients."""
    job = a_ring()
    recorded = record(job)
    for index, events in enumerate(recorded):
        rows = events.rows.copy()
        first = (rows["kind"] == Kind.COLLECTIVE) & (rows["iteration"] <= 2)
        rows["size_bytes"][first] += 4
        recorded[index] = replace(events, rows=rows)
    found, _ = measure_ring(recorded, config_of(job))
    assert found.iterations == job.iterations - 2
    assert found.bucket_bytes == job.bucket_bytes


def test_gradients_that_come_together() -> None:
    """Spans without bytes come with the next that has some; the least urgent layer has them all."""
    job = a_ring()
    recorded = record(job)
    for index, events in enumerate(recorded):
        rows = np.sort(events.rows, order="end_ns")
        backward = np.flatnonzero(rows["kind"] == Kind.BACKWARD)
        rows["size_bytes"][backward[1::2]] += rows["size_bytes"][backward[::2]]
        rows["size_bytes"][backward[::2]] = 0
        recorded[index] = replace(events, rows=rows)
    found, _ = measure_ring(recorded, config_of(job))
    assert sum(found.size_bytes) == sum(job.size_bytes)
    assert found.size_bytes[0::2] == (0,) * (LAYERS // 2)
    given = job.compute.gradient_ns
    assert np.array_equal(found.compute.gradient_ns[..., 0::2], given[..., 0::2])
    assert np.array_equal(found.compute.gradient_ns[..., 1::2], given[..., 0::2])


def test_what_is_missing_is_named() -> None:
    job = a_ring(iterations=2)
    config = config_of(job)
    with pytest.raises(UserError, match=r"no spans of rank 2: .* byteprophet.torch.record\(model"):
        measure_ring(record(job)[:2], config)
    for kind, says in (
        (Kind.ITERATION, "no iteration was recorded from begin to end"),
        (Kind.COLLECTIVE, "rank 1 recorded no collectives in iteration 2"),
    ):
        recorded = record(job)
        rows = recorded[1].rows
        recorded[1] = replace(recorded[1], rows=rows[rows["kind"] != kind])
        with pytest.raises(UserError, match=says):
            measure_ring(recorded, config)
    recorded = record(job)
    rows = recorded[1].rows.copy()
    rows["size_bytes"][rows["kind"] == Kind.COLLECTIVE] += 4
    recorded[1] = replace(recorded[1], rows=rows)
    with pytest.raises(UserError, match="rank 1 reduced other buckets than rank 0"):
        measure_ring(recorded, config)


def test_halves_are_refused() -> None:
    job = a_ring(iterations=2)
    recorded = record(job)
    names = {index: name.replace("bucket", "gather") for index, name in recorded[0].names.items()}
    recorded[0] = replace(recorded[0], names=names)
    with pytest.raises(UserError, match=r"in halves \('gather 0'\) cannot be replayed"):
        measure_ring(recorded, config_of(job))


def test_layers_need_not_be_known() -> None:
    job = a_ring()
    recorded = []
    for events in record(job):
        kept = ~np.isin(events.rows["kind"], (Kind.FORWARD, Kind.BACKWARD))
        recorded.append(replace(events, rows=events.rows[kept]))
    found, start_ns = measure_ring(recorded, config_of(job))
    assert found.layers == ("model",)
    again = build(found)
    again_ns = np.diff(replay(again.graph).start_ns[again.begin], axis=1)
    assert again_ns.sum() == pytest.approx(np.diff(start_ns, axis=1)[:, :-1].sum(), rel=0.01)
