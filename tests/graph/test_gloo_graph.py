"""All-reduce jobs as graphs, against closed forms: to the nanosecond."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from byteprophet.graph.gloo_graph import GlooGraph, build, chunk_bytes
from byteprophet.job import Bucket, Cluster, Costs, Host, Job, Model, Parameter, Strategy, Times
from byteprophet.job.strategy import DDP, FSDP2
from byteprophet.replay import Replayed, replay

RATE_BPS = 800_000_000  # a byte takes 10 ns
DELAY_NS = 30_000
FORWARD_NS, UPDATE_NS = 1_000_000, 500_000


def job(
    ranks: int,
    bucket_bytes: tuple[int, ...],
    bucket_ns: object,
    iterations: int = 1,
    at_once: int = 2,
    worker_bps: tuple[int, ...] | None = None,
) -> Job:
    """A layer per bucket, of which the first takes all of forward.

    ``bucket_ns``: in any shape that suits (ranks, iterations, buckets).
    """
    shape = (ranks, iterations)
    complete_ns = np.broadcast_to(np.asarray(bucket_ns), (*shape, len(bucket_bytes)))
    names = [f"layer {number}" for number in range(len(bucket_bytes))]
    first = np.zeros((*shape, len(names)), np.int64)
    first[..., 0] = 1
    return Job(
        model=Model(tuple(map(Parameter, names, bucket_bytes))),
        times=Times(
            forward_ns=first * FORWARD_NS,
            ready_ns=complete_ns.astype(np.int64),
            backward_ns=complete_ns.max(axis=2).astype(np.int64),
            update_ns=first * UPDATE_NS,
        ),
        cluster=Cluster(
            tuple(Host(rate, rate) for rate in worker_bps or (RATE_BPS,) * ranks),
            costs=Costs(delay_ns=DELAY_NS, collectives_at_once=at_once),
        ),
        strategy=Strategy(
            DDP, tuple(Bucket((name,), number, number) for number, name in enumerate(names))
        ),
    )


def done_ns(built: GlooGraph, replayed: Replayed) -> np.ndarray:
    """Shape (ranks, iterations, buckets)."""
    return replayed.end_ns[built.done]


def ring_ns(ranks: int, size_bytes: int) -> int:
    """Alone on the links: 2 (P - 1) steps, each a P-th of the bytes, and a delay."""
    return 2 * (ranks - 1) * (size_bytes // ranks * 10 + DELAY_NS)


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8])
def test_one_bucket(ranks: int) -> None:
    size_bytes = 840 * 1000
    built = build(job(ranks, (size_bytes,), 2_000_000, iterations=3))
    replayed = replay(built.graph)
    period_ns = FORWARD_NS + 2_000_000 + ring_ns(ranks, size_bytes) + UPDATE_NS
    expected = np.arange(3) * period_ns + period_ns - UPDATE_NS
    assert np.array_equal(done_ns(built, replayed)[:, :, 0], np.tile(expected, (ranks, 1)))
    assert replayed.makespan_ns == 3 * period_ns
    # All links carry the same: 2 (P - 1) / P of the bucket.
    assert set(replayed.link_bytes.tolist()) == {3 * 2 * (ranks - 1) * size_bytes // ranks}


def test_a_bucket_that_does_not_divide_loses_nothing() -> None:
    assert chunk_bytes(11, 4).tolist() == [3, 3, 3, 2]
    built = build(job(4, (11,), 0))
    sizes = built.graph.size_bytes[built.message[0][0]]  # steps, ranks
    # In either half every chunk passes all ranks but one.
    assert sizes[:3].sum() == sizes[3:].sum() == 3 * 11


def test_one_rank_has_nothing_to_send() -> None:
    built = build(job(1, (1000,), 2_000_000, iterations=2))
    assert replay(built.graph).makespan_ns == 2 * (FORWARD_NS + 2_000_000 + UPDATE_NS)


def test_nobody_is_done_before_the_last_rank_has_started() -> None:
    late_ns = np.array([2_000_000, 2_000_000, 9_000_000]).reshape(3, 1, 1)
    built = build(job(3, (300_000,), late_ns))
    done = done_ns(built, replay(built.graph))[:, 0, 0]
    # From then on it takes a whole ring.
    assert done.min() > FORWARD_NS + 9_000_000
    assert done.max() == FORWARD_NS + 9_000_000 + ring_ns(3, 300_000)


@pytest.mark.parametrize("waits", [False, True])
def test_what_follows_the_last_gradient_waits_if_the_script_does(waits: bool) -> None:
    rest_ns, size_bytes = 400_000, 300_000
    one = job(2, (size_bytes,), 2_000_000)
    backward_ns = one.times.backward_ns + rest_ns
    times = replace(one.times, backward_ns=backward_ns, waits_for_all=waits)
    built = build(replace(one, times=times))
    gathered_ns = FORWARD_NS + 2_000_000 + ring_ns(2, size_bytes)
    assert replay(built.graph).makespan_ns == gathered_ns + rest_ns * waits + UPDATE_NS


@pytest.mark.parametrize("ranks", [2, 4])
def test_two_buckets_that_meet_share_the_links(ranks: int) -> None:
    """Both complete at once, alike: each takes twice its bytes' time, and its own delays."""
    size_bytes = 400_000
    built = build(job(ranks, (size_bytes, size_bytes), 0))
    chunk_ns = size_bytes // ranks * 10
    expected = FORWARD_NS + 2 * (ranks - 1) * (2 * chunk_ns + DELAY_NS)
    assert set(done_ns(built, replay(built.graph)).ravel().tolist()) == {expected}


@pytest.mark.parametrize("at_once", [1, 2])
def test_ranks_start_buckets_in_one_order_whatever_is_complete_first(at_once: int) -> None:
    """As DistributedDataParallel does. Else two ranks would wait for each other in two buckets."""
    lot = np.random.default_rng(7)
    for _ in range(20):
        complete_ns = lot.integers(0, 9_000_000, (3, 2, 5))
        built = build(job(3, (40_000,) * 5, complete_ns, iterations=2, at_once=at_once))
        start_ns = replay(built.graph).start_ns[built.start]
        assert (np.diff(start_ns) >= 0).all()


def test_two_buckets_that_do_not_meet() -> None:
    apart_ns = 2 * ring_ns(2, 400_000)
    built = build(job(2, (400_000, 400_000), [0, apart_ns]))
    done = done_ns(built, replay(built.graph))[0, 0]
    assert done.tolist() == [FORWARD_NS + ns + ring_ns(2, 400_000) for ns in (0, apart_ns)]


def test_no_more_buckets_at_once_than_there_are_threads() -> None:
    """A third bucket starts when one of the two before it is done: the smaller, here."""
    sizes = (800_000, 200_000, 400_000)
    built = build(job(2, sizes, 0))
    replayed = replay(built.graph)
    start, done = replayed.end_ns[built.start][0, 0], done_ns(built, replayed)[0, 0]
    assert start[:2].tolist() == [FORWARD_NS, FORWARD_NS]
    assert start[2] == done[1] < done[0]
    alone = build(job(2, sizes, 0, at_once=1))
    replayed = replay(alone.graph)
    ends = FORWARD_NS + np.cumsum([ring_ns(2, size) for size in sizes])
    assert done_ns(alone, replayed)[0, 0].tolist() == ends.tolist()


@pytest.mark.parametrize("late_ns", [0, 9_000_000])
def test_who_begins_first_sends_when_the_other_one_has(late_ns: int) -> None:
    """Under FSDP2: an all-gather then takes half as long again, and a reduce-scatter twice."""
    plain = job(2, (400_000,), np.array([0, late_ns]).reshape(2, 1, 1))
    forward_ns = np.zeros_like(plain.times.forward_ns)
    update_ns = np.array([0, late_ns]).reshape(2, 1, 1)  # before the second iteration
    times = replace(plain.times, forward_ns=forward_ns, update_ns=update_ns)
    times = times.only_iterations(np.array([0, 0]))
    built = build(replace(plain, times=times, strategy=replace(plain.strategy, runtime=FSDP2)))
    done = done_ns(built, replay(built.graph))
    shard_ns = 200_000 * 10
    began_ns = replay(built.graph).start_ns[built.begin][1, 1]
    assert done[:, 1, 0].max() - began_ns == DELAY_NS + shard_ns + (shard_ns // 2 if late_ns else 0)
    began_ns = done[1, 0, 0] + late_ns
    assert done[:, 0, 1].max() - began_ns == DELAY_NS + shard_ns * (2 if late_ns else 1)


def test_a_frozen_parameter_is_gathered_and_not_reduced() -> None:
    """Under FSDP2. Of three units, one is frozen in part, and one as a whole."""
    sizes = {"head": 40_000, "frozen": 120_000, "adapter": 20_000, "body": 600_000}
    plain = job(2, tuple(sizes.values()), 1_000_000)
    frozen = [Parameter(n, size, "", n in ("frozen", "body")) for n, size in sizes.items()]
    units = [("head",), ("body",), ("frozen", "adapter")]
    buckets = tuple(Bucket(each, 3 + n, n, sharded=True) for n, each in enumerate(units))
    one = replace(plain, model=Model(tuple(frozen)), strategy=Strategy(FSDP2, buckets))
    replayed = replay(build(one).graph)
    # Of a unit, each rank sends half to gather, and half of what is trained to reduce.
    assert set(replayed.link_bytes.tolist()) == {(sum(sizes.values()) + 60_000) // 2}


def test_the_slowest_link_decides() -> None:
    slow = (RATE_BPS, RATE_BPS // 4, RATE_BPS)
    built = build(job(3, (300_000,), 0, worker_bps=slow))
    done = done_ns(built, replay(built.graph))
    # All that leaves it, and all that comes to it, takes four times as long.
    assert done.max() >= FORWARD_NS + 4 * 4 * 100_000 * 10
    assert done.max() <= FORWARD_NS + 4 * (4 * 100_000 * 10 + DELAY_NS)
