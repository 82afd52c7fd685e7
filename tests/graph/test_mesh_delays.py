"""Jobs with delayed averages as graphs: closed forms, priorities, and their bound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from byteprophet.allreduce.strategies import strategy_for
from byteprophet.bound import bound_ns
from byteprophet.graph.mesh_graph import build
from byteprophet.graph.mesh_transfers import FRAME_BYTES
from byteprophet.job import Bucket, Job, Strategy
from byteprophet.job.staleness import with_staleness
from byteprophet.job.strategy import ALL_REDUCE, OURS, Delay
from byteprophet.replay import replay
from byteprophet.replay.all_reduce import with_strategy

from .test_mesh_graph import MS, NS_PER_BYTE, iterations_ns, job


def delayed(one: Job, steps: dict[str, int]) -> Job:
    delays = [Delay(name, steps[name]) for name in one.model.names if name in steps]
    return with_strategy(one, with_staleness(one.strategy, delays))


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("size_bytes", [400_000, 840_000])
def test_an_iteration_takes_what_computing_or_the_link_takes(size_bytes: int, steps: int) -> None:
    """Both halves of one bucket take 10 ns per byte with two ranks; computing takes 5 ms."""
    bucket = Bucket(("layer0.weight",), 0, 1)
    one = job(2, (size_bytes,), (3 * MS,), (2 * MS,), iterations=12)
    one = replace(one, strategy=Strategy(ALL_REDUCE, (bucket,)))
    halves_ns = size_bytes * NS_PER_BYTE
    assert iterations_ns(one)[-1] == pytest.approx(5 * MS + halves_ns, rel=1e-3)
    late = delayed(one, {"layer0.weight": steps})
    expected_ns = max(5 * MS, halves_ns)
    assert bound_ns(late) == expected_ns
    assert np.mean(iterations_ns(late)[-6:]) == pytest.approx(expected_ns, rel=1e-2)


def test_what_is_delayed_yields_to_what_is_awaited() -> None:
    """Both gradients are ready together. The delayed one has the smallest place."""
    sizes = (FRAME_BYTES * 200, FRAME_BYTES * 2)
    one = job(2, sizes, (0, 900 * MS), (20 * MS, 20 * MS))
    buckets = (Bucket(("layer0.weight",), 0, 1), Bucket(("layer1.weight",), 2, 3))
    one = replace(one, strategy=Strategy(ALL_REDUCE, buckets))
    frame_ns = FRAME_BYTES * NS_PER_BYTE

    def exchange_ns(some: Job, bucket: int) -> int:
        built = build(some)
        replayed = replay(built.graph)
        start_ns = replayed.end_ns[built.start][0, 1, bucket]
        return int(replayed.end_ns[built.gathered][0, 1, bucket] - start_ns)

    assert exchange_ns(one, 1) > 100 * frame_ns
    late = delayed(one, {"layer0.weight": 1})
    assert exchange_ns(late, 1) <= 4 * frame_ns + 10
    assert exchange_ns(late, 0) > 200 * frame_ns


@pytest.mark.parametrize("runtime", OURS)
@pytest.mark.parametrize("seed", range(4))
def test_no_delays_are_faster_than_the_bound(runtime: str, seed: int) -> None:
    noise = np.random.default_rng(seed)
    layers, ranks = int(noise.integers(4, 9)), int(noise.integers(2, 5))
    sizes = tuple((noise.integers(1, 40, layers) * 100_000).tolist())
    forward = tuple(noise.integers(1, 10 * MS, layers).tolist())
    ready = tuple(np.cumsum(noise.integers(1, 20 * MS, layers))[::-1].tolist())
    one = job(ranks, sizes, forward, ready, iterations=40)
    one = replace(one, strategy=strategy_for(one, runtime))
    steps = dict(zip(one.model.names, noise.integers(0, 3, layers).tolist(), strict=True))
    late = delayed(one, {name: count for name, count in steps.items() if count})
    all_late = delayed(one, dict.fromkeys(one.model.names, 1))
    for each in (late, all_late):
        # What the last iterations send is not awaited, and the first ones await nothing.
        times_ns = iterations_ns(each)
        assert sum(times_ns) >= (len(times_ns) - 3) * bound_ns(each)
    assert bound_ns(all_late) <= bound_ns(late) <= bound_ns(one)
