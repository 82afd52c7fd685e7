"""Jobs whose ranks share cores, against closed forms and against jobs that share none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small_jobs import random_job, with_runtime

from byteprophet.graph import gloo_graph, mesh_graph, ps_graph
from byteprophet.job import Bucket, Cluster, Costs, Host, Job, Policy, Processors, Strategy
from byteprophet.job.strategy import ALL_REDUCE, BYTEPS, DDP, FSDP2, OURS
from byteprophet.replay import replay
from byteprophet.replay.all_reduce import ALL_REDUCE as KIND
from byteprophet.replay.ps import PS

from .test_mesh_graph import MS, NS_PER_BYTE, iterations_ns, job


def sharing(one: Job, cores: float, ns_per_byte: float = 0.0) -> Job:
    """``one`` with all its ranks on a machine with so many cores."""
    costs = replace(one.cluster.costs, processor_ns_per_byte=ns_per_byte)
    machine = Processors(tuple(range(one.workers)), cores)
    return replace(one, cluster=replace(one.cluster, costs=costs, processors=(machine,)))


@pytest.mark.parametrize(("ranks", "cores"), [(2, 1), (4, 2), (3, 1)])
def test_ranks_divide_the_cores(ranks: int, cores: int) -> None:
    """Forward takes 3 ms and backward 2 ms of processor time; gradients take next to no time."""
    one = sharing(job(ranks, (8,), (3 * MS,), (2 * MS,)), cores)
    assert iterations_ns(one)[-1] == pytest.approx(5 * MS * ranks / cores, rel=1e-3)


@pytest.mark.parametrize("runtime", [*OURS, DDP])
@pytest.mark.parametrize("seed", range(3))
def test_enough_cores_change_nothing(runtime: str, seed: int) -> None:
    if runtime == DDP:
        one = replace(random_job(seed, 6), strategy=_one_bucket(random_job(seed, 6), DDP))
    else:
        one = with_runtime(random_job(seed, 6), runtime, 1_000_000)
    assert np.array_equal(KIND.iterations_ns(one), KIND.iterations_ns(sharing(one, 64)))


def _one_bucket(one: Job, runtime: str) -> Strategy:
    return Strategy(runtime, (Bucket(one.model.names, 0, 1),))


def test_messages_take_processor_time_from_computing() -> None:
    """A bucket travels while the rest of the backward pass is computed, on one core per rank.

    A byte takes 10 ns on a link, and 4 ns of processor time in all. Both directions are in use, so
    a rank's threads use 0.4 of its core while messages travel, and computing has 0.6 of it.
    """
    size_bytes = 1_000_000
    travels_ns = size_bytes // 2 * NS_PER_BYTE
    one = job(2, (8, size_bytes), (0, 0), (20 * MS, 1 * MS))
    one = sharing(one, 2, ns_per_byte=4.0)
    built = mesh_graph.build(one)
    replayed = replay(built.graph)
    averaged_ns = replayed.end_ns[built.averaged] - replayed.end_ns[built.start]
    order = [bucket.parameters[0] for bucket in one.strategy.buckets].index("layer1.weight")
    assert averaged_ns[0, -1, order] == pytest.approx(travels_ns, rel=1e-3)
    computed_ns = (replayed.end_ns - replayed.start_ns)[built.end]
    backward_ns = np.diff(replayed.end_ns[built.end], axis=1)
    assert computed_ns.min() >= 0
    # 5 ms of travelling take 2 ms of computing away; all-gathers wait for step().
    assert backward_ns[0, -1] == pytest.approx(20 * MS + 2 * MS + travels_ns, rel=0.02)


def test_a_thread_carries_no_more_than_a_core_can() -> None:
    """On links without limits, a byte takes half of its processor time, at both ends at once."""
    size_bytes = 4_000_000
    one = job(2, (size_bytes,), (0,), (1 * MS,), costs=Costs())
    one = replace(one, cluster=replace(one.cluster, workers=(Host(), Host())))
    one = sharing(one, 64, ns_per_byte=6.0)
    halves_ns = size_bytes * 3
    assert iterations_ns(one)[-1] == pytest.approx(1 * MS + halves_ns, rel=1e-3)


def test_handing_buckets_over_takes_time() -> None:
    """Two buckets more, each for 1 ms; they travel in next to no time."""
    one = job(2, (8, 8, 8), (0, 0, 0), (9 * MS, 6 * MS, 3 * MS))
    names = one.model.names[::-1]
    each = tuple(Bucket((name,), place, place) for place, name in enumerate(names))
    cluster = replace(one.cluster, costs=Costs(bucket_ns=MS))

    def backward_ns(buckets: tuple[Bucket, ...]) -> int:
        built = gloo_graph.build(replace(one, cluster=cluster, strategy=Strategy(DDP, buckets)))
        return int(np.diff(replay(built.graph).start_ns[built.begin], axis=1)[0, -1])

    assert backward_ns(each) - backward_ns((Bucket(names, 0, 0),)) == pytest.approx(
        2 * MS, rel=0.01
    )


@pytest.mark.parametrize(("ranks", "cores"), [(2, 1), (3, 2), (4, 2), (2, 2)])
def test_each_step_of_a_ring_waits_for_a_core(ranks: int, cores: int) -> None:
    """A bucket of next to no bytes is complete while all ranks compute for a long time.

    Each of them has ``cores / ranks`` of a core, so that a turn takes as much longer.
    """
    turn_ns = 3 * MS
    one = job(ranks, (8, 8), (0, 0), (500 * MS, 1 * MS))
    names = one.model.names
    buckets = (Bucket(names[1:], 0, 0), Bucket(names[:1], 1, 1))
    one = sharing(replace(one, strategy=Strategy(DDP, buckets)), cores)
    costs = replace(one.cluster.costs, turn_ns=turn_ns)
    one = replace(one, cluster=replace(one.cluster, costs=costs))
    built = gloo_graph.build(one)
    replayed = replay(built.graph)
    took_ns = (replayed.end_ns[built.done] - replayed.start_ns[built.start])[:, -1, 0]
    waits_ns = 2 * (ranks - 1) * turn_ns * ranks / cores if ranks > cores else 0
    assert took_ns == pytest.approx(waits_ns, rel=0.01, abs=1000)


@pytest.mark.parametrize(("runtime", "exposed_halves"), [(DDP, 2), (FSDP2, 3)])
@pytest.mark.parametrize("ranks", [2, 3])
def test_messages_of_gloo_cost_processor_time(
    ranks: int, runtime: str, exposed_halves: int
) -> None:
    """Two buckets of next to no bytes; ranks have a core each, and compute at the same time.

    On as many cores as ranks, what the first bucket costs is missing from the backward pass, which
    goes on meanwhile. With more cores, only what is not beside the backward pass takes longer: an
    all-reduce of the second bucket (two halves), or its reduce-scatter and both all-gathers.
    """
    message_ns = MS
    one = job(ranks, (8, 8), (0, 0), (500 * MS, 1 * MS))
    names = one.model.names
    buckets = (Bucket(names[1:], 0, 0), Bucket(names[:1], 1, 1))
    one = replace(one, strategy=Strategy(runtime, buckets))
    costs = replace(one.cluster.costs, message_processor_ns=message_ns)
    one = replace(one, cluster=replace(one.cluster, costs=costs))

    def began_ns(given: Job) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        built = gloo_graph.build(given)
        return np.diff(replay(built.graph).start_ns[built.begin], axis=1)[0]

    def on(cores: int) -> Job:
        machine = Processors(tuple(range(ranks)), cores)
        return replace(one, cluster=replace(one.cluster, processors=(machine,)))

    alone_ns = began_ns(one)  # messages cost nothing where it is not known what shares cores
    half_ns = (ranks - 1) * message_ns
    assert began_ns(on(ranks)) - alone_ns == pytest.approx(4 * half_ns, rel=0.01)
    more_ns = began_ns(on(4 * ranks)) - alone_ns
    assert more_ns == pytest.approx(exposed_halves * half_ns, rel=0.01)


@pytest.mark.parametrize(("servers", "expected_ms"), [((0,), 28), ((), 24)])
def test_pushes_and_answers_take_processor_time(servers: tuple[int, ...], expected_ms: int) -> None:
    """One worker on one core; its only large gradient is ready early, and backward goes on.

    A byte takes 10 ns on the link and 4 ns of processor time, half of it at each end. So 1 MB that
    is pushed and comes back takes 8 ms from the backward pass of 20 ms, if the server has the same
    core, and 4 ms if it has another one.
    """
    one = job(1, (8, 1_000_000), (0, 0), (20 * MS, 1 * MS))
    costs = Costs(processor_ns_per_byte=4.0)
    cluster = Cluster(
        (Host(800_000_000, 800_000_000),),
        (Host(),),
        costs,
        processors=(Processors((0,), 1, servers),),
    )
    strategy = Strategy(BYTEPS, partition_bytes=1_000_000)
    policy = Policy("fifo", {"partition_bytes": 1_000_000})
    built = ps_graph.build(replace(one, cluster=cluster, strategy=strategy, policy=policy))
    replayed = replay(built.graph)
    backward_ns = np.diff(replayed.end_ns[built.backward[0, :, -1]])[-1]
    assert backward_ns == pytest.approx(expected_ms * MS, rel=0.01)


@pytest.mark.parametrize(
    ("standing_ms", "cores", "servers", "expected_ms"),
    [
        (0, 1, (0,), 11),  # 10 ms on the link after 1 ms
        (15, 1, (0,), 16),
        (7, 1, (0,), 11),  # it was over when the push arrived
        (100, 1, (0,), 20),  # all is computed then, and the core is free
        (15, 2, (0,), 11),
        (15, 1, (), 11),  # the server has cores of its own
        (15, 0.5, (0,), 11),  # a worker that has part of a core shares it with the server
    ],
)
def test_a_server_stands_still_while_all_cores_compute(
    standing_ms: int, cores: float, servers: tuple[int, ...], expected_ms: int
) -> None:
    """The link carries a push of 1 MB, but the server does not see it before it has a core."""
    one = job(1, (8, 1_000_000), (0, 0), (20 * MS, 1 * MS))
    cluster = Cluster(
        (Host(800_000_000, 800_000_000),),
        (Host(),),
        Costs(standing_ns=(standing_ms * MS,)),
        processors=(Processors((0,), cores, servers),),
    )
    strategy = Strategy(BYTEPS, partition_bytes=1_000_000)
    policy = Policy("fifo", {"partition_bytes": 1_000_000})
    built = ps_graph.build(replace(one, cluster=cluster, strategy=strategy, policy=policy))
    replayed = replay(built.graph)
    at_ns = replayed.start_ns[built.sum[0, 0]].min()
    begin_ns = replayed.start_ns[built.begin[0, 0]]
    late_ns = (1 / cores - 1) * MS if cores < 1 else 0  # the gradient is
    assert at_ns - begin_ns - late_ns == pytest.approx(expected_ms * MS, rel=0.01)
    assert (replayed.end_ns[built.acked[0, 0]] >= at_ns).all()


@pytest.mark.parametrize("seed", range(3))
def test_enough_cores_change_nothing_with_servers(seed: int) -> None:
    one = replace(
        random_job(seed, 6, 3),
        strategy=Strategy(BYTEPS, partition_bytes=500_000),
        policy=Policy("fifo", {"partition_bytes": 500_000}),
    )
    one = replace(one, cluster=replace(one.cluster, servers=(Host(),)))
    assert np.array_equal(PS.iterations_ns(one), PS.iterations_ns(sharing(one, 64)))


def test_more_workers_have_machines_of_their_own() -> None:
    machines = (Processors((0, 1), 2, (0,)), Processors((2,), 4))
    cluster = replace(random_job(0, 4, 3).cluster, processors=machines)
    assert cluster.with_workers(3) == cluster
    assert cluster.with_workers(5).processors == (*machines, Processors((3, 4), 2))
    assert cluster.with_workers(1).processors == (Processors((0,), 2, (0,)),)


def test_runtimes_are_compared_with_cores() -> None:
    """What is bound by processors gains nothing from better overlap."""
    slow = sharing(with_runtime(random_job(2, 8), ALL_REDUCE, 10**8), 0.5)
    times_ns = slow.times
    work_ns = times_ns.forward_ns.sum(axis=2) + times_ns.backward_ns
    least_ns = float(np.median(work_ns.sum(axis=0)) / 0.5)
    assert float(np.median(KIND.iterations_ns(slow))) >= 0.99 * least_ns
