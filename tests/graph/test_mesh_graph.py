"""Jobs of our own all-reduce runtimes as graphs, against closed forms and the planner's model."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from byteprophet.allreduce.grouping import best_plan
from byteprophet.allreduce.levelled import levelled
from byteprophet.allreduce.model import predict
from byteprophet.allreduce.order import RUNTIMES
from byteprophet.allreduce.strategies import strategy_for, timing_of
from byteprophet.bound import bound_ns
from byteprophet.errors import UserError
from byteprophet.graph.mesh_graph import build
from byteprophet.graph.mesh_transfers import FRAME_BYTES
from byteprophet.job import Bucket, Cluster, Costs, Host, Job, Model, Parameter, Strategy, Times
from byteprophet.job.owners import LEAST_CHUNK_BYTES
from byteprophet.job.strategy import ALL_REDUCE, DEAR, OURS
from byteprophet.replay import replay

RATE_BPS = 800_000_000  # a byte takes 10 ns
NS_PER_BYTE = 10
MS = 1_000_000


def job(
    ranks: int,
    sizes: tuple[int, ...],
    forward_ns: tuple[int, ...],
    ready_ns: tuple[int, ...],
    iterations: int = 4,
    update_ns: int = 0,
    costs: Costs | None = None,
) -> Job:
    """Ranks that are alike; a bucket per parameter, under DeAR."""
    shape = (ranks, iterations, len(sizes))
    names = [f"layer{number}.weight" for number in range(len(sizes))]
    order = sorted(range(len(sizes)), key=lambda place: (ready_ns[place], -place))
    return Job(
        model=Model(tuple(map(Parameter, names, sizes))),
        times=Times(
            forward_ns=np.broadcast_to(forward_ns, shape).astype(np.int64),
            ready_ns=np.broadcast_to(ready_ns, shape).astype(np.int64),
            backward_ns=np.full(shape[:2], max(ready_ns), np.int64),
            update_ns=np.full(shape, update_ns, np.int64),
        ),
        cluster=Cluster((Host(RATE_BPS, RATE_BPS),) * ranks, costs=costs or Costs()),
        strategy=Strategy(
            DEAR,
            tuple(
                Bucket((names[place],), turn, len(sizes) + place, sharded=True)
                for turn, place in enumerate(order)
            ),
        ),
    )


def iterations_ns(one: Job) -> list[int]:
    """Begin to begin, of the first rank."""
    built = build(one)
    begin_ns = replay(built.graph).start_ns[built.begin][0]
    return np.diff(begin_ns).tolist()


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_one_bucket(ranks: int) -> None:
    """Nothing hides its halves: 2 (P - 1) / P of it, after backward and before forward."""
    size_bytes = 840_000
    one = job(ranks, (size_bytes,), (3 * MS,), (2 * MS,), update_ns=MS)
    built = build(one)
    replayed = replay(built.graph)
    half_ns = (ranks - 1) * size_bytes // ranks * NS_PER_BYTE
    period_ns = 3 * MS + 2 * MS + 2 * half_ns + MS
    starts_ns = replayed.start_ns[built.forward][:, :, 0]
    assert np.diff(starts_ns, axis=1) == pytest.approx(period_ns, rel=1e-4)
    sent = 2 * (ranks - 1) * size_bytes // ranks * one.iterations
    assert set(replayed.link_bytes.tolist()) == {sent}


def test_whole_buckets_are_gathered_before_the_step() -> None:
    """Both halves under backward, which ends late: forward waits for the update alone."""
    one = job(2, (400_000,), (3 * MS,), (MS,), update_ns=MS)
    times = replace(one.times, backward_ns=np.full_like(one.times.backward_ns, MS))
    late = replace(one, times=times, strategy=Strategy(ALL_REDUCE, (
        Bucket(("layer0.weight",), 0, 1, sharded=False),
    )))  # fmt: skip
    half_ns = 200_000 * NS_PER_BYTE
    built = build(late)
    replayed = replay(built.graph)
    gathered_ns = replayed.end_ns[built.gathered][0, 0, 0]
    assert gathered_ns == pytest.approx(3 * MS + MS + 2 * half_ns, rel=1e-4)
    assert replayed.end_ns[built.update][0, 0, 0] == gathered_ns + MS


def test_what_is_urgent_overtakes_after_a_frame() -> None:
    """The first layer's gradient comes last, after a large bucket of the last layer."""
    sizes = (FRAME_BYTES * 2, FRAME_BYTES * 200)
    one = job(2, sizes, (0, 300 * MS), (20 * MS, MS))
    urgent_first = Strategy(
        ALL_REDUCE,
        (
            Bucket(("layer0.weight",), 0, 1, sharded=False),
            Bucket(("layer1.weight",), 2, 3, sharded=False),
        ),
    )
    built = build(replace(one, strategy=urgent_first))
    replayed = replay(built.graph)
    frame_ns = FRAME_BYTES * NS_PER_BYTE
    start_ns = replayed.end_ns[built.start][0, 0, 0]
    # A frame of the other one is in front of each half.
    took_ns = replayed.end_ns[built.gathered][0, 0, 0] - start_ns
    assert 2 * frame_ns <= took_ns <= 4 * frame_ns + 10
    other_ns = replayed.end_ns[built.gathered][0, 0, 1]
    assert other_ns > start_ns + 100 * frame_ns


def test_layers_wait_for_their_own_parameters_only() -> None:
    sizes = (400_000, 40_000_000)
    built = build(job(2, sizes, (5 * MS, 5 * MS), (4 * MS, 2 * MS), iterations=2))
    replayed = replay(built.graph)
    forward_ns = replayed.start_ns[built.forward][0, 1]
    gathered_ns = replayed.end_ns[built.gathered][0, 0][::-1]  # the last layer's bucket is first
    assert forward_ns[0] == gathered_ns[0] < gathered_ns[1] == forward_ns[1]


@pytest.mark.parametrize("sharded", [False, True])
def test_all_wait_for_all_averages_if_the_script_does(sharded: bool) -> None:
    """Shards' averages are there before the all-gathers."""
    sizes = (400_000, 40_000_000)
    one = job(2, sizes, (5 * MS, 5 * MS), (4 * MS, 2 * MS), iterations=2)
    behind_ns = np.full_like(one.times.backward_ns, 7 * MS)  # of these, 3 behind the last gradient
    times = replace(one.times, backward_ns=behind_ns, waits_for_all=True)
    buckets = (
        Bucket(("layer0.weight",), 0, 2, sharded=sharded),
        Bucket(("layer1.weight",), 1, 3, sharded=sharded),
    )
    built = build(replace(one, times=times, strategy=Strategy(DEAR, buckets)))
    replayed = replay(built.graph)
    arrived = built.averaged if sharded else built.gathered
    there_ns = replayed.end_ns[arrived][:, 0].max(axis=1)
    assert (replayed.start_ns[built.update][:, 0] >= there_ns[:, None]).all()
    assert (replayed.start_ns[built.begin][:, 1] == there_ns + 3 * MS).all()
    assert sharded == (replayed.end_ns[built.gathered][:, 0].max(axis=1) > there_ns).all()


def test_lags_and_delays_are_added_where_nothing_hides_them() -> None:
    costs = Costs(start_lag_ns=100_000, update_lag_ns=200_000, delay_ns=30_000)
    plain, slow = (
        iterations_ns(job(2, (840_000,), (3 * MS,), (2 * MS,), costs=each))[1]
        for each in (Costs(), costs)
    )
    assert slow - plain == 100_000 + 200_000 + 2 * 30_000


@pytest.mark.parametrize("runtime", OURS)
@pytest.mark.parametrize("seed", range(6))
def test_the_planner_s_model_is_met(runtime: str, seed: int) -> None:
    """Which knows of no frames: a frame per half, and what two connections share, is the rest."""
    noise = np.random.default_rng(seed)
    layers, ranks = int(noise.integers(2, 12)), int(noise.integers(2, 5))
    sizes = tuple((noise.integers(1, 40, layers) * 200_000).tolist())
    forward = tuple(noise.integers(1, 40 * MS, layers).tolist())
    ready = tuple(np.cumsum(noise.integers(1, 80 * MS, layers))[::-1].tolist())
    one = job(ranks, sizes, forward, ready)
    timing = timing_of(one, message_cost_ns=0)
    groups, _ = best_plan(runtime, timing)
    expected_ns = predict(timing, groups, RUNTIMES[runtime](timing, groups)).iteration_ns
    strategy = strategy_for(one, runtime)
    assert sorted(n for b in strategy.buckets for n in b.parameters) == sorted(one.model.names)
    took_ns = iterations_ns(replace(one, strategy=strategy))[-1]
    frame_ns = FRAME_BYTES * NS_PER_BYTE
    assert took_ns == pytest.approx(expected_ns, abs=4 * ranks * frame_ns, rel=0.02)


def unequal(one: Job, rates_bps: list[int], owners: tuple[int, ...]) -> Job:
    hosts = tuple(Host(rate, rate) for rate in rates_bps)
    return replace(one, cluster=Cluster(hosts), strategy=replace(one.strategy, owners=owners))


@pytest.mark.parametrize("owners", [(), (1, 1, 1, 0), (0, 0, 1, 0), (5, 1, 3, 7)])
def test_every_link_carries_what_its_rank_owns(owners: tuple[int, ...]) -> None:
    """A rank with the share s sends, and receives, 1 + (P - 2) s of every byte."""
    one = unequal(job(4, (400_000, 960_000), (MS, MS), (2 * MS, MS)), [RATE_BPS] * 4, owners)
    carried = replay(build(one).graph).link_bytes
    weights = owners or (1,) * 4
    expected = [(1 + 2 * w / sum(weights)) * 1_360_000 * one.iterations for w in weights]
    assert carried.tolist() == pytest.approx(expected * 2, rel=1e-5)


def test_halves_of_one_bucket_on_unequal_links() -> None:
    """The slow rank sends all of it at half rate, and then receives all of it."""
    size_bytes = 840_000
    one = job(4, (size_bytes,), (3 * MS,), (2 * MS,))
    one = unequal(one, [RATE_BPS] * 3 + [RATE_BPS // 2], (1, 1, 1, 0))
    half_ns = 2 * size_bytes * NS_PER_BYTE
    assert iterations_ns(one)[-1] == pytest.approx(5 * MS + 2 * half_ns, rel=1e-4)


@pytest.mark.parametrize("slow", [1, 2])
def test_levelled_owners_overlap_the_halves_of_different_buckets(slow: int) -> None:
    """Communication alone: equal owners take 1.5 times as long as the bound, levelled 1.0."""
    layers = 60
    one = job(4, (3_000_000,) * layers, (0,) * layers, tuple(range(layers))[::-1])
    rates_bps = [RATE_BPS] * (4 - slow) + [RATE_BPS // 2] * slow
    took_ns = {}
    for owners in ((), levelled(rates_bps).weights):
        asked = unequal(one, rates_bps, owners)
        strategy = strategy_for(asked, ALL_REDUCE, bucket_bytes=1)
        assert strategy.owners == owners
        took_ns[owners] = iterations_ns(replace(asked, strategy=strategy))[-1]
    equal_ns, levelled_ns = took_ns.values()
    least_ns = bound_ns(asked)
    assert least_ns == pytest.approx(2 * 3_000_000 * layers * NS_PER_BYTE, rel=1e-3)
    assert 1 <= levelled_ns / least_ns <= 1.08
    assert equal_ns / least_ns == pytest.approx(1.5, rel=0.03)


@pytest.mark.parametrize("runtime", OURS)
@pytest.mark.parametrize("seed", range(4))
def test_the_planner_s_model_is_near_on_unequal_links(runtime: str, seed: int) -> None:
    """It has every direction alone; connections share two links each, so it is not exact."""
    noise = np.random.default_rng(seed)
    layers, ranks = int(noise.integers(6, 12)), int(noise.integers(3, 5))
    sizes = tuple((noise.integers(10, 40, layers) * 200_000).tolist())
    forward = tuple(noise.integers(1, 40 * MS, layers).tolist())
    ready = tuple(np.cumsum(noise.integers(1, 80 * MS, layers))[::-1].tolist())
    rates_bps = [RATE_BPS] * (ranks - 1) + [RATE_BPS // 2]
    one = unequal(job(ranks, sizes, forward, ready), rates_bps, levelled(rates_bps).weights)
    timing = timing_of(one, message_cost_ns=0)
    groups, _ = best_plan(runtime, timing)
    expected_ns = predict(timing, groups, RUNTIMES[runtime](timing, groups)).iteration_ns
    took_ns = iterations_ns(replace(one, strategy=strategy_for(one, runtime)))[-1]
    assert took_ns >= bound_ns(one)
    assert took_ns == pytest.approx(expected_ns, rel=0.1)


def test_a_job_that_is_too_large_is_refused_before_memory_is_taken() -> None:
    with pytest.raises(UserError, match="frames in each half, too many to be replayed"):
        build(job(2, (1 << 50,), (MS,), (MS,)))


def test_operations_say_what_they_are() -> None:
    one = job(2, (400_000, 800_000), (MS, MS), (2 * MS, MS), iterations=1)
    graph = build(one).graph
    texts = [graph.labels.describe(operation) for operation in range(len(graph))]
    assert "forward of layer1.weight, worker 1, iteration 0" in texts
    assert "reduce-scatter of bucket 0, worker 0 to worker 1, iteration 0" in texts
    assert "all-gather of bucket 1, worker 1 to worker 0, iteration 0" in texts
    assert all(texts)


def test_an_all_reduce_in_chunks_is_one_of_each_chunk() -> None:
    """With unequal owners, a large gradient takes as long as its parts in buckets of their own."""
    parts, size_bytes = 3, 2 * LEAST_CHUNK_BYTES + 12
    chunks = [size_bytes * n // parts for n in range(parts + 1)]
    sizes = [b - a for a, b in pairwise(chunks)]
    whole = job(3, (size_bytes, 1000), (3 * MS, MS), (6 * MS, 2 * MS))
    cut = job(3, (*sizes, 1000), (0,) * (parts - 1) + (3 * MS, MS), (6 * MS,) * parts + (2 * MS,))
    slow = Host(RATE_BPS // 2, RATE_BPS // 2)
    ways = []
    for one, count in ((whole, 1), (cut, parts)):
        cluster = replace(one.cluster, workers=(*one.cluster.workers[:2], slow))
        names = one.model.names
        buckets = tuple(Bucket((name,), 1, 2) for name in names[:count])
        strategy = Strategy(ALL_REDUCE, (*buckets, Bucket((names[-1],), 3, 4)), owners=(2, 2, 1))
        ways.append(iterations_ns(replace(one, cluster=cluster, strategy=strategy)))
    assert ways[0] == ways[1]
