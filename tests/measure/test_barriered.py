"""What is measured in spans is what the all-reduce job was that left them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from byteprophet.errors import UserError
from byteprophet.graph.gloo_graph import build
from byteprophet.job import Bucket, Cluster, Costs, Host, Job, Model, Parameter, Strategy, Times
from byteprophet.job.strategy import DDP, FSDP2
from byteprophet.job.strategy_file import Used
from byteprophet.measure.all_reduce import measure_all_reduce
from byteprophet.measure.barriered import _ASSUMED_BUCKET_NS
from byteprophet.replay import replay
from byteprophet.timeline.tables import Kind

from .recorded_gloo import bucket_bytes, config_of, record

LINK_BPS, DELAY_NS = 480_000_000, 120_000
LAYERS = 10


def a_ring(ranks: int = 3, iterations: int = 8, backward_ns: int = 200_000_000) -> Job:
    """Ranks that are never quite alike; a bucket of two layers, the last in forward order first."""
    noise = np.random.default_rng(7)
    shape = (ranks, iterations, LAYERS)
    gradient_ns = np.sort(noise.integers(0, backward_ns, shape[1:]))[:, ::-1]
    gradient_ns = gradient_ns + np.sort(noise.integers(0, 10**7, shape))[:, :, ::-1]
    size_bytes = noise.integers(10_000, 2_000_000, LAYERS) * 4
    layers = [f"layer{number}.conv" for number in range(LAYERS)]
    return Job(
        model=Model(
            tuple(
                Parameter(layer, size)
                for layer, size in zip(layers, size_bytes.tolist(), strict=True)
            )
        ),
        times=Times(
            forward_ns=noise.integers(10**6, 10**7, shape),
            ready_ns=gradient_ns,
            backward_ns=gradient_ns.max(axis=2),
            update_ns=noise.integers(10**5, 10**6, shape),
        ),
        cluster=Cluster((Host(LINK_BPS, LINK_BPS),) * ranks, costs=Costs(delay_ns=DELAY_NS)),
        strategy=Strategy(
            DDP,
            tuple(
                Bucket((layers[last], layers[last - 1]), number, number)
                for number, last in enumerate(range(LAYERS - 1, 0, -2))
            ),
            bucket_bytes=int((size_bytes[::-1][::2] + size_bytes[::-1][1::2]).max()),
        ),
    )


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("backward_ns", [200_000_000, 2_000_000_000])
def test_a_job_is_measured_as_it_was(ranks: int, backward_ns: int) -> None:
    job = a_ring(ranks, backward_ns=backward_ns)
    found, start_ns = measure_all_reduce(record(job), config_of(job), None)
    assert found.model == job.model
    assert found.strategy.fixed, "no file says which gradients share a bucket"
    assert replace(found.strategy, fixed="") == job.strategy
    for name in ("forward_ns", "ready_ns", "backward_ns"):
        assert np.array_equal(getattr(found.times, name), getattr(job.times, name)), name
    # Updates are made together: how long each takes is not known.
    assert np.array_equal(found.times.update_ns.sum(axis=2), job.times.update_ns.sum(axis=2))
    if ranks > 1:
        rates_bps = [host.up_bps for host in found.cluster.workers]
        assert rates_bps == pytest.approx([LINK_BPS] * ranks, rel=0.02)
    # What is replayed again is what was recorded.
    again = build(found)
    again_ns = np.diff(replay(again.graph).start_ns[again.begin], axis=1)
    assert again_ns.sum() == pytest.approx(np.diff(start_ns, axis=1)[:, :-1].sum(), rel=0.01)


def test_handing_buckets_over_is_no_part_of_the_gradients() -> None:
    """Each bucket takes the training thread 0.7 ms, which is measured, and counted once."""
    job = a_ring()
    costs = replace(job.cluster.costs, bucket_ns=700_000)
    slow = replace(job, cluster=replace(job.cluster, costs=costs))
    found, _ = measure_all_reduce(record(slow), config_of(slow), None)
    assert found.cluster.costs.bucket_ns == 700_000
    assert np.array_equal(found.times.ready_ns, job.times.ready_ns)


def test_older_runs_do_not_tell_what_a_bucket_takes() -> None:
    job = a_ring()
    recorded = [
        replace(events, rows=events.rows[events.rows["kind"] != Kind.COMPUTE])
        for events in record(job)
    ]
    found, start_ns = measure_all_reduce(recorded, config_of(job), None)
    assert found.cluster.costs.bucket_ns == _ASSUMED_BUCKET_NS
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
    found, _ = measure_all_reduce(recorded, config_of(job), None)
    assert found.iterations == job.iterations - 2
    assert bucket_bytes(found) == bucket_bytes(job)


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
    found, _ = measure_all_reduce(recorded, config_of(job), None)
    assert found.model.size_bytes == job.model.size_bytes
    assert found.model.sizes_bytes[0::2] == (0,) * (LAYERS // 2)
    given = job.times.ready_ns
    assert np.array_equal(found.times.ready_ns[..., 0::2], given[..., 0::2])
    assert np.array_equal(found.times.ready_ns[..., 1::2], given[..., 0::2])


def test_accumulation_is_refused_and_a_last_forward_pass_is_not() -> None:
    """Under FSDP2's no_sync(), every second backward pass exchanges nothing."""
    job = a_ring(iterations=6)
    accumulated, evaluated = record(job), record(job)
    for rank, events in enumerate(record(job)):
        rows = events.rows
        held = (rows["iteration"] % 2 == 1) & (rows["kind"] == Kind.COLLECTIVE)
        accumulated[rank] = replace(events, rows=rows[~held])
        backward = (rows["kind"] == Kind.BACKWARD) | (rows["kind"] == Kind.COLLECTIVE)
        evaluated[rank] = replace(events, rows=rows[~(backward & (rows["iteration"] == 3))])
    with pytest.raises(
        UserError, match=r"iteration 5 exchanges nothing, as in FSDP2's no_sync\(\)"
    ):
        measure_all_reduce(accumulated, config_of(job), None)
    found, _ = measure_all_reduce(evaluated, config_of(job), None)
    assert found.iterations == 3


def sharded(frozen: set[str]) -> Job:
    """A job under FSDP2, with the layers of ``a_ring`` in five units, some of them ``frozen``."""
    job = a_ring(iterations=5)
    model = Model(tuple(replace(p, frozen=p.name in frozen) for p in job.model.parameters))
    units = tuple(
        Bucket(each.parameters, 5 + number, 4 - number, sharded=True)
        for number, each in enumerate(job.strategy.buckets)
    )
    return replace(job, model=model, strategy=Strategy(FSDP2, units))


@pytest.mark.parametrize(
    "frozen", [set(), {"layer6.conv"}, {"layer6.conv", "layer7.conv", "layer0.conv"}]
)
def test_units_that_are_frozen_are_gathered_and_not_reduced(frozen: set[str]) -> None:
    """Some units are frozen in part, and one as a whole."""
    job = sharded(frozen)
    used = Used(job.model, job.strategy, 1)
    found, start_ns = measure_all_reduce(record(job), config_of(job), used)
    again = build(replace(found, cluster=job.cluster))
    assert again.done.shape[2] == 5 + 5 - ("layer7.conv" in frozen)
    again_ns = np.diff(replay(again.graph).start_ns[again.begin], axis=1)
    assert again_ns.sum() == pytest.approx(np.diff(start_ns, axis=1)[:, :-1].sum(), rel=0.02)
    if len(frozen) < 3:
        return
    unknown = replace(used, model=replace(job.model, parameters=sharded(set()).model.parameters))
    with pytest.raises(UserError, match=r"rank 0 reduced 4 buckets in iteration 1, and 5 of those"):
        measure_all_reduce(record(job), config_of(job), unknown)


def test_steps_of_two_forward_passes_are_refused() -> None:
    """An iteration begins with each forward pass, and every second one reduces nothing."""
    job = a_ring(iterations=6)
    halves = record(job)
    for rank, events in enumerate(halves):
        rows = events.rows
        backward = np.isin(rows["kind"], (Kind.BACKWARD, Kind.COLLECTIVE, Kind.COMPUTE))
        halves[rank] = replace(events, rows=rows[~(backward & (rows["iteration"] % 2 == 1))])
    with pytest.raises(UserError, match=r"iteration 5 has a forward pass and exchanges nothing"):
        measure_all_reduce(halves, config_of(job), None)


def test_iterations_before_the_last_buckets_are_not_measured() -> None:
    job = a_ring(iterations=4)
    recorded, config = record(job), config_of(job)
    used = Used(job.model, job.strategy, 3)
    assert measure_all_reduce(recorded, config, used)[0].iterations == 2
    with pytest.raises(UserError, match="buckets were used from iteration 5 on"):
        measure_all_reduce(recorded, config, replace(used, since=5))


def test_what_is_missing_is_named() -> None:
    job = a_ring(iterations=2)
    config = config_of(job)
    with pytest.raises(UserError, match=r"no spans of rank 2: .* byteprophet.torch.record\(model"):
        measure_all_reduce(record(job)[:2], config, None)
    with pytest.raises(UserError, match=r"events of rank 2, but config.toml has 2 ranks"):
        measure_all_reduce(record(job), {**config, "workers": 2}, None)
    for kind, says in (
        (Kind.ITERATION, "no iteration was recorded completely"),
        (Kind.COLLECTIVE, "rank 1 recorded no collectives in iteration 2"),
    ):
        recorded = record(job)
        rows = recorded[1].rows
        recorded[1] = replace(recorded[1], rows=rows[rows["kind"] != kind])
        with pytest.raises(UserError, match=says):
            measure_all_reduce(recorded, config, None)
    recorded = record(job)
    rows = recorded[1].rows.copy()
    rows["size_bytes"][rows["kind"] == Kind.COLLECTIVE] += 4
    recorded[1] = replace(recorded[1], rows=rows)
    with pytest.raises(UserError, match="rank 1 reduced other buckets than rank 0"):
        measure_all_reduce(recorded, config, None)


def test_halves_are_refused() -> None:
    job = a_ring(iterations=2)
    recorded = record(job)
    names = {
        index: name.replace("bucket ", "reduce-scatter 1.")
        for index, name in recorded[0].names.items()
    }
    recorded[0] = replace(recorded[0], names=names)
    with pytest.raises(
        UserError, match=r"splits all-reduces \('reduce-scatter 1.0'\) but has no strategy"
    ):
        measure_all_reduce(recorded, config_of(job), None)


def test_layers_need_not_be_known() -> None:
    job = a_ring()
    recorded = []
    for events in record(job):
        kept = ~np.isin(events.rows["kind"], (Kind.FORWARD, Kind.BACKWARD))
        recorded.append(replace(events, rows=events.rows[kept]))
    found, start_ns = measure_all_reduce(recorded, config_of(job), None)
    buckets = [f"bucket {number}" for number in range(len(job.strategy.buckets))]
    assert found.model.names == (*buckets, "model")
    assert bucket_bytes(found) == bucket_bytes(job)
    again = build(found)
    again_ns = np.diff(replay(again.graph).start_ns[again.begin], axis=1)
    assert again_ns.sum() == pytest.approx(np.diff(start_ns, axis=1)[:, :-1].sum(), rel=0.01)
