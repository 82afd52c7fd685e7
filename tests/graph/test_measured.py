"""What is measured in events is what the job was that left them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from byteprophet import schedulers
from byteprophet._core import ANSWERS_BYTES
from byteprophet.errors import UserError
from byteprophet.graph.measured import measure
from byteprophet.graph.ps_graph import build
from byteprophet.graph.ps_job import Compute, Network, PsJob
from byteprophet.replay import replay
from byteprophet.timeline.tables import SERVED_TABLE, SPANS, TRANSFERS, Kind
from byteprophet.workload import load

from .recorded_replay import config_of, record

LINK_BPS = 480_000_000


def a_job(scheduler: str, servers: int = 1, iterations: int = 8) -> PsJob:
    """Three workers that are never alike."""
    workload = load("resnet18").scaled(700_000_000)
    known, partition_bytes = schedulers.resolve(scheduler, {})
    noise = np.random.default_rng(7)
    shape = (3, iterations, len(workload.tensors))

    def about(times_ns: object) -> np.ndarray:
        return (np.asarray(times_ns) * noise.uniform(0.9, 1.1, shape)).astype(np.int64)

    ready_ns = about(workload.ready_ns())
    return PsJob(
        tensors=tuple(tensor.name for tensor in workload.tensors),
        size_bytes=tuple(tensor.size_bytes for tensor in workload.tensors),
        compute=Compute(
            forward_ns=about([tensor.forward_ns for tensor in workload.tensors]),
            ready_ns=ready_ns,
            backward_ns=ready_ns.max(axis=2) + noise.integers(0, 10**6, shape[:2]),
            update_ns=about(np.full(shape[2], 10**5)),
        ),
        network=Network(
            (LINK_BPS,) * 3,
            (0,) * servers,
            message_cost_ns=20_000,
            delay_ns=150_000,
            sum_ns_per_byte=0.5,
            hand_over_ns=20_000,
            request_lags_ns=(150_000,),
            answers_bytes=ANSWERS_BYTES,
        ),
        scheduler=scheduler,
        partition_bytes=partition_bytes,
        settings=known,
    )


@pytest.mark.parametrize("scheduler", ["fifo", "p3", "bytescheduler", "prophet"])
@pytest.mark.parametrize("servers", [1, 2])
def test_a_job_is_measured_as_it_was(scheduler: str, servers: int) -> None:
    job = a_job(scheduler, servers)
    recorded, replayed, built = record(job)
    measured = measure(recorded, config_of(job))
    found = measured.job
    assert (found.tensors, found.size_bytes) == (job.tensors, job.size_bytes)
    assert np.array_equal(found.compute.forward_ns, job.compute.forward_ns)
    assert np.array_equal(found.compute.ready_ns, job.compute.ready_ns)
    assert np.array_equal(found.compute.backward_ns, job.compute.backward_ns)
    assert np.array_equal(found.compute.update_ns, job.compute.update_ns)
    starts_ns = replayed.start_ns[built.begin]
    assert np.array_equal(np.diff(measured.start_ns, axis=1)[:, :-1], np.diff(starts_ns, axis=1))
    # What is replayed again with the network that was found is what was recorded.
    again = build(found)
    again_ns = np.diff(replay(again.graph).start_ns[again.begin], axis=1).max(axis=0)
    error = np.median(again_ns[2:]) / np.median(measured.iteration_ns[2:-1]) - 1
    assert abs(error) < 0.03  # with two servers, p3's choices hang on microseconds
    assert found.network.hand_over_ns == job.network.hand_over_ns
    lag_ns = np.median(found.network.request_lags_ns)
    assert lag_ns == pytest.approx(job.network.request_lags_ns[0], rel=0.1)


def test_servers_may_have_recorded_nothing() -> None:
    job = a_job("fifo")
    recorded, _, _ = record(job)
    recorded = [events for events in recorded if events.table is not SERVED_TABLE]
    network = measure(recorded, config_of(job)).job.network
    assert network.sum_ns_per_byte == 0
    assert network.worker_bps == pytest.approx((LINK_BPS,) * 3, rel=0.02)


def test_iterations_that_were_cut_off_are_left_out() -> None:
    job = a_job("fifo", iterations=4)
    recorded, _, _ = record(job)
    for index, events in enumerate(recorded):
        if events.table is SPANS and events.origin.rank == 1:
            last = (events.rows["kind"] == Kind.ITERATION) & (events.rows["iteration"] == 4)
            recorded[index] = replace(events, rows=events.rows[~last])
    assert measure(recorded, config_of(job)).job.iterations == 3


def test_what_is_missing_is_named() -> None:
    job = a_job("fifo", iterations=2)
    recorded, _, _ = record(job)

    def without(table: object, rank: int) -> list[object]:
        return [e for e in recorded if e.table is not table or e.origin.rank != rank]

    with pytest.raises(UserError, match="has no spans of rank 2: run the job with --record"):
        measure(without(SPANS, 2), config_of(job))  # type: ignore[arg-type]
    with pytest.raises(UserError, match="has no transfers of rank 0"):
        measure(without(TRANSFERS, 0), config_of(job))  # type: ignore[arg-type]
    for index, events in enumerate(recorded):
        if events.table is SPANS:
            rows = events.rows[events.rows["kind"] != Kind.ITERATION]
            recorded[index] = replace(events, rows=rows)
    with pytest.raises(UserError, match="no iteration was recorded from begin to end"):
        measure(recorded, config_of(job))
