"""What is measured in events is what the job was that left them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from byteprophet import schedulers
from byteprophet._core import ANSWERS_BYTES
from byteprophet.errors import UserError
from byteprophet.graph.ps_graph import build
from byteprophet.job import Costs, Host, Job, Processors, Times
from byteprophet.job.fused_file import Fused
from byteprophet.measure.processors import Use
from byteprophet.measure.servers import measure
from byteprophet.measure.settings import Told
from byteprophet.network import PAYLOAD_SHARE, payload_bps
from byteprophet.replay import replay
from byteprophet.replay.predict import predict
from byteprophet.replay.what_if import Changes
from byteprophet.timeline.tables import SERVED_TABLE, SPANS, TRANSFERS, Kind
from byteprophet.workload import load

from .recorded_replay import config_of, record
from .server_jobs import cluster_of, server_job

LINK_BPS = 480_000_000


def a_job(scheduler: str, servers: int = 1, iterations: int = 8, common_order: int = 0) -> Job:
    """Three workers that are never alike."""
    workload = load("resnet18").scaled(700_000_000)
    given = {"common_order": common_order} if scheduler == "prophet" else {}
    known, partition_bytes = schedulers.resolve(scheduler, given)
    noise = np.random.default_rng(7)
    shape = (3, iterations, len(workload.tensors))

    def about(times_ns: object) -> np.ndarray:
        return (np.asarray(times_ns) * noise.uniform(0.9, 1.1, shape)).astype(np.int64)

    ready_ns = about(workload.ready_ns())
    return server_job(
        [tensor.name for tensor in workload.tensors],
        [tensor.size_bytes for tensor in workload.tensors],
        Times(
            forward_ns=about([tensor.forward_ns for tensor in workload.tensors]),
            ready_ns=ready_ns,
            backward_ns=ready_ns.max(axis=2) + noise.integers(0, 10**6, shape[:2]),
            update_ns=about(np.full(shape[2], 10**5)),
        ),
        cluster_of(
            (LINK_BPS,) * 3,
            (0,) * servers,
            Costs(
                message_cost_ns=20_000,
                delay_ns=150_000,
                sum_ns_per_byte=0.5,
                hand_over_ns=20_000,
                request_lags_ns=(150_000,),
                answers_bytes=ANSWERS_BYTES,
            ),
        ),
        scheduler,
        partition_bytes,
        known,
    )


@pytest.mark.parametrize("scheduler", ["fifo", "p3", "bytescheduler", "prophet"])
@pytest.mark.parametrize("servers", [1, 2])
def test_a_job_is_measured_as_it_was(scheduler: str, servers: int) -> None:
    job = a_job(scheduler, servers)
    recorded, replayed, built = record(job)
    measured = measure(recorded, config_of(job))
    found = measured.job
    assert (found.model.names, found.model.sizes_bytes) == (job.model.names, job.model.sizes_bytes)
    assert np.array_equal(found.times.forward_ns, job.times.forward_ns)
    assert np.array_equal(found.times.ready_ns, job.times.ready_ns)
    assert np.array_equal(found.times.backward_ns, job.times.backward_ns)
    assert np.array_equal(found.times.update_ns, job.times.update_ns)
    starts_ns = replayed.start_ns[built.begin]
    assert np.array_equal(np.diff(measured.start_ns, axis=1)[:, :-1], np.diff(starts_ns, axis=1))
    # What is replayed again with the network that was found is what was recorded.
    again = build(found)
    again_ns = np.diff(replay(again.graph).start_ns[again.begin].max(axis=0))
    error = np.median(again_ns[2:]) / np.median(measured.iteration_ns[2:-1]) - 1
    assert abs(error) < 0.03  # with two servers, p3's choices hang on microseconds
    assert found.cluster.costs.hand_over_ns == job.cluster.costs.hand_over_ns
    lag_ns = np.median(found.cluster.costs.request_lags_ns)
    assert lag_ns == pytest.approx(job.cluster.costs.request_lags_ns[0], rel=0.1)


def test_a_job_whose_workers_agree_on_an_order_is_replayed_as_it_was() -> None:
    job = a_job("prophet", servers=2, common_order=1)
    recorded, replayed, built = record(job)
    again = build(measure(recorded, config_of(job)).job)
    was_ns, again_ns = (
        np.median(np.diff(found.start_ns[graph.begin].max(axis=0))[2:])
        for found, graph in ((replayed, built), (replay(again.graph), again))
    )
    assert again_ns == pytest.approx(was_ns, rel=0.03)
    alone, _, _ = record(a_job("prophet", servers=2, common_order=0))
    assert not np.array_equal(alone[1].rows["sent_ns"], recorded[1].rows["sent_ns"])


@pytest.mark.parametrize("limits_bps", [(10**9, 2 * 10**8), (3 * 10**8, None)])
def test_limited_servers_are_replayed_as_they_were(limits_bps: tuple[int | None, ...]) -> None:
    """The second server, or the first one, is what an iteration waits for."""
    rates_bps = [payload_bps(limit) or 0 for limit in limits_bps]
    job = a_job("fifo", 2)
    hosts = tuple(Host(rate, rate) for rate in rates_bps)
    job = replace(job, cluster=replace(job.cluster, servers=hosts))
    recorded, replayed, built = record(job)
    own_bps = {str(n): limit for n, limit in enumerate(limits_bps) if limit}
    worker_bps = {str(n): round(LINK_BPS / PAYLOAD_SHARE) for n in range(3)}
    limits = {"server_bandwidth_bps": own_bps, "worker_bandwidth_bps": worker_bps}
    found = measure(recorded, {**config_of(job), **limits}).job
    assert [host.up_bps for host in found.cluster.servers] == rates_bps
    assert [host.up_bps for host in found.cluster.workers] == pytest.approx(
        [LINK_BPS] * 3, rel=1e-6
    )
    starts_ns = replayed.start_ns[built.begin]
    again = build(found)
    again_ns = np.diff(replay(again.graph).start_ns[again.begin], axis=1).max(axis=0)
    was_ns = np.diff(starts_ns, axis=1).max(axis=0)
    assert np.median(again_ns) == pytest.approx(np.median(was_ns), rel=0.05)


def test_servers_may_have_recorded_nothing() -> None:
    job = a_job("fifo")
    recorded, _, _ = record(job)
    recorded = [events for events in recorded if events.table is not SERVED_TABLE]
    cluster = measure(recorded, config_of(job)).job.cluster
    assert cluster.costs.sum_ns_per_byte == 0
    rates_bps = [host.up_bps for host in cluster.workers]
    assert rates_bps == pytest.approx([LINK_BPS] * 3, rel=0.02)


def test_of_several_local_ranks_the_last_one_tells_of_its_worker() -> None:
    """Ranks 1, 3 and 5 talk to servers; ranks 0, 2 and 4 only recorded spans."""
    job = a_job("fifo")
    recorded, _, _ = record(job)
    alone = measure([e for e in recorded if e.table is not SERVED_TABLE], config_of(job)).job
    shared = []
    for events in recorded:
        if events.table is SERVED_TABLE:
            shared.append(events)
            continue
        rank = 2 * events.origin.rank
        of = (rank, rank + 1) if events.table is SPANS else (rank + 1,)
        shared += [replace(events, origin=replace(events.origin, rank=other)) for other in of]
    found = measure(shared, {**config_of(job), "local_ranks": 2}).job
    assert found.workers == job.workers
    assert found.cluster == alone.cluster
    for name, times_ns in vars(alone.times).items():
        assert np.array_equal(getattr(found.times, name), times_ns), name
    with pytest.raises(UserError, match="several local ranks, whose sums stock does not record"):
        measure(shared, {**config_of(job), "local_ranks": 2, "scheduler": "stock"})


@pytest.mark.parametrize("scheduler", ["fifo", "stock"])
def test_a_window_is_measured_as_it_was(scheduler: str) -> None:
    """Of eight iterations, workers recorded 3 to 6 (``--record-steps 3:7``), servers all."""
    job = a_job(scheduler)
    recorded, _, _ = record(job)
    window = slice(2, 6)
    for index, events in enumerate(recorded):
        if events.table is not SERVED_TABLE:
            rows, number = events.rows.copy(), events.rows["iteration"]
            if events.table is TRANSFERS:
                rows["round"] = number  # as the plug-in counts them
            recorded[index] = replace(events, rows=rows[(number >= 3) & (number < 7)])
    found = measure(recorded, config_of(job), Told(settled_from=4))
    assert found.settled_from == 4 - 2
    assert measure(recorded, config_of(job), Told(settled_from=1)).settled_from == 0
    with pytest.raises(UserError, match="last settings were used from iteration 7 on"):
        measure(recorded, config_of(job), Told(settled_from=6))
    for name in ("forward_ns", "ready_ns"):
        was_ns, is_ns = getattr(job.times, name), getattr(found.job.times, name)
        assert np.array_equal(is_ns, was_ns[:, window]), name
    assert found.job.model == job.model
    assert predict(found, Changes()).replay_error == pytest.approx(0, abs=0.03)
    if scheduler == "fifo":
        # Other tensors were sent before the fifth: ready times as in it stand for theirs.
        ready_ns = measure(recorded, config_of(job), fused=Fused(since=5)).job.times.ready_ns
        backward_ns = job.times.backward_ns[:, 2:4, None]
        assert np.array_equal(ready_ns[:, :2], np.minimum(ready_ns[:, 2:3], backward_ns))
        assert np.array_equal(ready_ns[:, 2:], job.times.ready_ns[:, 4:6])


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
    with pytest.raises(UserError, match=r"events of rank 2, but config.toml has 2 ranks"):
        measure(recorded, {**config_of(job), "workers": 2})
    for index, events in enumerate(recorded):
        if events.table is SPANS:
            rows = events.rows[events.rows["kind"] != Kind.ITERATION]
            recorded[index] = replace(events, rows=rows)
    with pytest.raises(UserError, match="a job of several optimizers cannot be replayed"):
        measure(recorded, config_of(job))
    for index, events in enumerate(recorded):
        if events.table is SPANS:
            recorded[index] = replace(events, rows=events.rows[events.rows["iteration"] < 2])
    with pytest.raises(UserError, match="no iteration was recorded completely"):
        measure(recorded, config_of(job))


@pytest.mark.parametrize("cores", [1.0, 2.0])
def test_processor_times_are_those_of_the_job(cores: float) -> None:
    """Three workers and their server share cores: what they compute takes longer by the clock."""
    alone = a_job("fifo")
    use = Use((Processors((0, 1, 2), cores, (0,)),), 1.0)
    job = replace(alone, cluster=use.on(alone.cluster, (LINK_BPS,) * 3))
    recorded, _, _ = record(job)
    wall = measure(recorded, config_of(job)).job
    found = measure(recorded, config_of(job), use=use).job
    assert found.cluster.processors == use.machines
    assert found.cluster.costs.processor_ns_per_byte == use.ns_per_byte
    assert _computing_ns(wall) > 1.2 * _computing_ns(job)
    assert _computing_ns(found) == pytest.approx(_computing_ns(job), rel=0.06)
    again_ns, was_ns = (_iteration_ns(each) for each in (found, job))
    assert again_ns == pytest.approx(was_ns, rel=0.06)


def _computing_ns(job: Job) -> float:
    return float((job.times.forward_ns.sum(axis=2) + job.times.backward_ns).mean())


def _iteration_ns(job: Job) -> float:
    built = build(job)
    ends_ns = replay(built.graph).end_ns[built.backward[..., -1]].max(axis=0)
    return float(np.diff(ends_ns).mean())
