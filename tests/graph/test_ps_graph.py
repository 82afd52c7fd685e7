"""Jobs as graphs: replayed, they come out as the engine of simulated jobs has it, exactly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byteprophet import schedulers
from byteprophet.engine import simulate
from byteprophet.errors import UserError
from byteprophet.graph.model import Int64Array
from byteprophet.graph.ps_graph import PsGraph, build
from byteprophet.job import Costs, Job, Times
from byteprophet.job.partitions import numbers_of
from byteprophet.network import payload_bps
from byteprophet.replay import replay
from byteprophet.workload import Workload, load

from ..measure.server_jobs import cluster_of, server_job

RATE_BPS = 500_000_000
COSTS = Costs(delay_ns=150_000, message_cost_ns=20_000, sum_ns_per_byte=1.0, sum_threads=4)


def job_of(workload: Workload, scheduler: str, workers: int, servers: int, iterations: int) -> Job:
    """The same in all iterations, as a simulated job is."""
    known, partition_bytes = schedulers.resolve(scheduler, {})
    tensors = workload.tensors
    shape = (workers, iterations, len(tensors))
    link_bps = payload_bps(RATE_BPS)
    assert link_bps is not None
    return server_job(
        [tensor.name for tensor in tensors],
        [tensor.size_bytes for tensor in tensors],
        Times(
            forward_ns=np.broadcast_to([tensor.forward_ns for tensor in tensors], shape),
            ready_ns=np.broadcast_to(workload.ready_ns(), shape),
            backward_ns=np.full(shape[:2], workload.backward_ns),
            update_ns=np.zeros(shape, np.int64),
        ),
        cluster_of(
            (link_bps,) * workers,
            (0,) * servers,
            COSTS,
        ),
        scheduler,
        partition_bytes,
        known,
        numbers_of([tensor.name for tensor in tensors]),
    )


@pytest.mark.parametrize("scheduler", schedulers.names)
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_equals_the_simulated_job(scheduler: str, workers: int) -> None:
    workload = load("resnet18").scaled(900_000_000)
    job = job_of(workload, scheduler, workers, 1, 5)
    simulated = simulate(job, iterations=5, warmup_iterations=0)
    built = build(job)
    replayed = replay(built.graph)
    assert np.array_equal(replayed.start_ns[built.begin], simulated.start_ns[:, :-1])
    assert np.array_equal(replayed.end_ns[built.forward[..., -1]], simulated.backward_start_ns)


@pytest.mark.parametrize("scheduler", [name for name in schedulers.names if name != "stock"])
def test_equals_it_with_two_servers(scheduler: str) -> None:
    workload = load("resnet18").scaled(900_000_000)
    job = job_of(workload, scheduler, 2, 2, 4)
    simulated = simulate(job, iterations=4, warmup_iterations=0)
    built = build(job)
    starts_ns = replay(built.graph).start_ns[built.begin]
    assert np.array_equal(starts_ns, simulated.start_ns[:, :-1])


def random_job(draw: st.DrawFn) -> Job:
    workers, servers, iterations, tensors = (draw(st.integers(1, most)) for most in (3, 2, 3, 6))
    shape = (workers, iterations, tensors)
    times = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes = [4 * draw(st.integers(1, 200_000)) for _ in range(tensors)]
    scheduler = draw(st.sampled_from(schedulers.names))
    known, partition_bytes = schedulers.resolve(scheduler, {})
    return server_job(
        [f"tensor {number}" for number in range(tensors)],
        sizes,
        Times(
            forward_ns=times.integers(0, 10**7, shape),
            ready_ns=times.integers(0, 3 * 10**7, shape),
            backward_ns=times.integers(0, 4 * 10**7, shape[:2]),
            update_ns=times.integers(0, 10**6, shape),
            waits_for_all=bool(times.integers(0, 2)),
        ),
        cluster_of(
            [int(rate) for rate in times.integers(0, 2, workers) * 10**9],
            [int(rate) for rate in times.integers(0, 2, servers) * 10**9],
            Costs(
                message_cost_ns=int(times.integers(0, 10**5)),
                delay_ns=int(times.integers(0, 10**6)),
                sum_ns_per_byte=float(times.uniform(0, 2)),
                ack_lag_ns=int(times.integers(0, 10**7)),
            ),
        ),
        scheduler,
        partition_bytes,
        known,
    )


@settings(max_examples=60)
@given(st.data())
def test_nothing_begins_before_what_it_needs(data: st.DataObject) -> None:
    job = data.draw(st.composite(random_job)())
    built = build(job)
    replayed = replay(built.graph)
    begin_ns, end_ns = replayed.start_ns, replayed.end_ns
    tensor = built.partitions.tensor
    check_compute(job, built, begin_ns, end_ns)
    for worker in range(job.workers):
        for iteration in range(job.iterations):
            at = worker, iteration
            ready_ns = end_ns[built.ready[at]][tensor]
            assert (begin_ns[built.push[at]] >= ready_ns).all()
            assert (begin_ns[built.sum[at]] >= end_ns[built.push[at]]).all()
            all_sums_ns = end_ns[built.sum[:, iteration]].max(axis=0)
            assert (begin_ns[built.answer[at]] >= all_sums_ns).all()
            answers_ns = end_ns[built.answer[at]] + job.cluster.costs.delay_ns
            updates_ns = begin_ns[built.update[at]][tensor]
            assert (updates_ns >= answers_ns).all() or job.push_policy.name == "stock"
            costs = job.cluster.costs
            acknowledged_ns = end_ns[built.acked[at]] + costs.delay_ns + costs.ack_lag_ns
            assert (updates_ns >= acknowledged_ns).all() or job.push_policy.name == "stock"
            if job.times.waits_for_all:
                assert updates_ns.min() >= answers_ns.max()


def check_compute(job: Job, built: PsGraph, begin_ns: Int64Array, end_ns: Int64Array) -> None:
    """A worker computes one thing at a time, for as long as it takes, after the updates."""
    for worker in range(job.workers):
        for iteration in range(job.iterations):
            at = worker, iteration
            took_ns = (end_ns - begin_ns)[built.forward[at]]
            assert np.array_equal(took_ns, job.times.forward_ns[at])
            backward_began_ns = end_ns[built.forward[at][-1]]
            assert np.array_equal(
                end_ns[built.ready[at]] - backward_began_ns, job.times.ready_ns[at]
            )
            if iteration:
                before = worker, iteration - 1
                needed_ns = end_ns[built.update[before]]
                if job.push_policy.name == "stock":
                    needed_ns = end_ns[built.answer[before]].max() + job.cluster.costs.delay_ns
                assert (begin_ns[built.forward[at]] >= needed_ns).all()
                assert begin_ns[built.begin[at]] == end_ns[built.backward[before][-1]]


def test_a_gradient_may_be_ready_after_the_next_iteration_could_begin() -> None:
    """What is ready last ends backward, whatever is said of its length."""
    job = job_of(load("resnet18").scaled(10**8), "fifo", 1, 1, 2)
    job.times.backward_ns.fill(0)
    built = build(job)
    replayed = replay(built.graph)
    last_ns = replayed.end_ns[built.ready[0, 0]].max()
    assert replayed.start_ns[built.begin[0, 1]] == last_ns


@pytest.mark.parametrize("lag_ns", [0, 10**9])
def test_an_update_waits_for_the_acknowledgement(lag_ns: int) -> None:
    """Also where the answer comes first."""
    job = job_of(load("resnet18").scaled(10**8), "fifo", 1, 1, 1)
    costs = replace(COSTS, ack_lag_ns=lag_ns)
    job = replace(job, cluster=replace(job.cluster, costs=costs))
    built = build(job)
    replayed = replay(built.graph)
    answers_ns = replayed.end_ns[built.answer[0, 0]] + costs.delay_ns
    acknowledged_ns = replayed.end_ns[built.acked[0, 0]] + costs.delay_ns + lag_ns
    assert (acknowledged_ns > answers_ns).all() == (lag_ns > 0)
    there_ns = np.zeros(len(job.model.sizes_bytes), np.int64)
    np.maximum.at(there_ns, built.partitions.tensor, np.maximum(answers_ns, acknowledged_ns))
    assert np.array_equal(replayed.start_ns[built.update[0, 0]], there_ns)


def test_a_job_that_is_too_large_is_refused_before_memory_is_taken() -> None:
    job = job_of(load("resnet18"), "fifo", workers=8, servers=1, iterations=1000)
    with pytest.raises(UserError, match="transfers of partitions, too many to be replayed"):
        build(replace(job, strategy=replace(job.strategy, partition_bytes=4096)))
