"""Passes that change keys: legal moves, balanced loads, never worse, and applied where they say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteprophet import schedulers
from byteprophet.job import Cluster, Costs, Host, Job, Model, Parameter, Policy, Strategy, Times
from byteprophet.job.partitions import partitions_of_job
from byteprophet.job.strategy import Keys
from byteprophet.optimize.evaluate import Evaluator
from byteprophet.optimize.moves import Hints, Move
from byteprophet.optimize.passes.placement import Placement, balanced, rates_of
from byteprophet.optimize.passes.policy import Policy as PolicyPass
from byteprophet.optimize.passes.runtime import Runtime
from byteprophet.optimize.passes.tensor_partition import TensorPartition
from byteprophet.optimize.search import search
from byteprophet.replay.ps import change
from byteprophet.replay.what_if import Changes

RATE_BPS = 400_000_000
SIZES = (40_000, 2_000_000, 6_000_000, 2_000_000, 40_000, 1_000_000)
NAMES = ("in", "layer.0", "large", "layer.1", "out.0", "out.1")


def job_of(
    *server_bps: int, partition_bytes: int = 8 << 20, policy: str = "fifo", workers: int = 2
) -> Job:
    """Few large tensors: at the start, each of them is one partition."""
    settings, size_bytes = schedulers.resolve(policy, {}, partition_bytes)
    shape = (workers, 6, len(SIZES))
    ready_ns = np.array([60, 50, 40, 30, 20, 10]) * 10**6
    return Job(
        Model(tuple(map(Parameter, NAMES, SIZES))),
        Times(
            forward_ns=np.full(shape, 5 * 10**6),
            ready_ns=np.broadcast_to(ready_ns, shape),
            backward_ns=np.full(shape[:2], 60 * 10**6),
            update_ns=np.full(shape, 20_000),
        ),
        Cluster(
            (Host(RATE_BPS, RATE_BPS),) * workers,
            tuple(Host(rate, rate) for rate in server_bps),
            Costs(delay_ns=200_000, message_cost_ns=50_000),
        ),
        Strategy(partition_bytes=size_bytes),
        Policy(policy, settings),
    )


def loads(job: Job) -> list[int]:
    """The bytes that each server sums."""
    parts = partitions_of_job(job)
    counted = np.bincount(parts.server, parts.size_bytes, job.servers)
    return [int(each) for each in counted]


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("partition_bytes", [1 << 19, 8 << 20])
def test_moves_keep_every_byte_and_name_servers_that_there_are(
    partition_bytes: int, symmetric: bool
) -> None:
    job = job_of(RATE_BPS, RATE_BPS, RATE_BPS // 2, partition_bytes=partition_bytes)
    hints = replace(Evaluator()(job).hints, symmetric=symmetric)
    assert hints.tensor_ns
    seen = 0
    at: list[Move] = [Move("as it is", job)]
    for step in range(3):  # moves after moves
        move = at[-1 - step % 2]
        offered = [
            *Placement().starts(move.job),
            *Placement().moves(move.job, hints),
            *TensorPartition().moves(move.job, hints),
        ]
        assert len({each.job.strategy for each in offered}) > 20
        for each in offered:
            assert each.job.strategy != move.job.strategy, each.what
            assert sum(loads(each.job)) == sum(SIZES), each.what
            assert replace(each.job, strategy=move.job.strategy, policy=move.job.policy) == move.job
        seen += len(offered)
        at += offered
    assert seen > 60


def test_alike_gradients_are_cut_alike() -> None:
    job = job_of(0, 0)
    (both, *_) = [
        move
        for move in TensorPartition().moves(job, Hints(symmetric=True))
        if "layer.0, and 1 alike" in move.what
    ]
    assert {each.tensor for each in both.job.strategy.keys} == {"layer.0", "layer.1"}
    assert len({each.partition_bytes for each in both.job.strategy.keys}) == 1


def test_what_the_script_compresses_is_cut_as_before() -> None:
    """BytePS compresses each partition alone, so what is left of a gradient depends on its cuts."""
    job = job_of(0, 0, partition_bytes=1 << 20)
    compressed = replace(job.strategy, compressed_by_script=("layer.0",))
    job = replace(job, strategy=compressed)
    others = Runtime()
    others.learn_other(job)
    moves = [
        *TensorPartition().moves(job, Hints(symmetric=True)),
        *PolicyPass().starts(job),
        *others.starts(job),
    ]
    assert {key.tensor for move in moves for key in move.job.strategy.keys} >= {"large", "layer.1"}
    for move in moves:
        assert move.job.strategy.partition_bytes == 1 << 20
        assert "layer.0" not in {key.tensor for key in move.job.strategy.keys}


def test_small_partitions_are_not_taken_for_free() -> None:
    job = job_of(0, 0)
    for partition_bytes in (8 << 20, 1 << 17):
        costs = replace(job.cluster.costs, message_cost_ns=0)
        strategy = replace(job.strategy, partition_bytes=partition_bytes)
        unknown = replace(job, cluster=replace(job.cluster, costs=costs), strategy=strategy)
        known = replace(job, strategy=strategy)
        least = []
        for each in (unknown, known):
            strategies = [move.job.strategy for move in TensorPartition().moves(each, Hints())]
            sizes = {k.partition_bytes for strategy in strategies for k in strategy.keys}
            least.append(min(sizes | {strategy.partition_bytes for strategy in strategies}))
        assert least[0] >= min(partition_bytes, 256 << 10)
        assert least[1] < 256 << 10 or partition_bytes > 1 << 20


@given(
    sizes=st.lists(st.integers(1, 10**7), min_size=1, max_size=40),
    rates=st.lists(st.integers(1, 10**9), min_size=1, max_size=5),
    data=st.data(),
)
def test_no_server_is_later_than_the_list_schedule_may_be(
    sizes: list[int], rates: list[int], data: st.DataObject
) -> None:
    """Graham's argument: the server that ends last was the best one for its last partition."""
    order = data.draw(st.permutations(range(len(sizes))))
    servers = balanced(sizes, [float(rate) for rate in rates], order)
    busy = [0.0] * len(rates)
    for size, server in zip(sizes, servers, strict=True):
        busy[server] += size / rates[server]
    ideal = sum(sizes) / sum(rates)
    slack = (len(rates) - 1) * max(sizes) / sum(rates) + max(sizes) / sum(rates)
    assert max(busy) <= (ideal + slack) * (1 + 1e-9)


def test_the_load_follows_the_rates_of_servers() -> None:
    job = job_of(RATE_BPS, RATE_BPS // 3, partition_bytes=1 << 16)
    for start in Placement().starts(job):
        fast, slow = loads(start.job)
        assert fast / slow == pytest.approx(3, rel=0.05)
    assert rates_of(job_of(0, RATE_BPS)) == [2 * RATE_BPS, RATE_BPS]
    assert rates_of(job_of(0, 0)) == [2 * RATE_BPS] * 2


def test_placed_keys_are_replayed_on_the_servers_that_they_name() -> None:
    """All on one server of two is the job of one server; the other one might as well not be."""
    for policy in ("fifo", "prophet"):
        alone = job_of(RATE_BPS, partition_bytes=1 << 19, policy=policy)
        together = job_of(RATE_BPS, RATE_BPS, partition_bytes=1 << 19, policy=policy)
        for server in (0, 1):
            keys = tuple(Keys(name, 0, (server,)) for name in NAMES)
            placed = replace(together, strategy=replace(together.strategy, keys=keys))
            assert Evaluator()(placed).iteration_ns == Evaluator()(alone).iteration_ns
        assert Evaluator()(together).iteration_ns < Evaluator()(alone).iteration_ns


@pytest.mark.parametrize("server_bps", [(RATE_BPS, RATE_BPS), (RATE_BPS, RATE_BPS // 3)])
def test_the_search_places_and_cuts_few_large_tensors(server_bps: tuple[int, ...]) -> None:
    job = job_of(*server_bps)
    only = search(job, (Placement(),), budget_s=3.0)
    both = search(job, (Placement(), TensorPartition()), budget_s=5.0)
    assert only.best.iteration_ns <= only.start.iteration_ns
    assert both.best.iteration_ns < 0.8 * both.start.iteration_ns
    rates = sum(server_bps)
    least_ns = 2 * sum(SIZES) * 8 * 10**9 // rates
    assert both.best.iteration_ns > 0.97 * least_ns


def test_nothing_is_placed_where_nothing_can_be() -> None:
    job = job_of(RATE_BPS)
    assert not [*Placement().starts(job), *Placement().moves(job, Hints())]
    stock = job_of(RATE_BPS, RATE_BPS, policy="stock")
    for each in (Placement(), TensorPartition()):
        assert not [*each.starts(stock), *each.moves(stock, Hints())]
    unnamed = replace(job_of(0, 0), model=Model(tuple(Parameter("", size) for size in SIZES)))
    assert not [*Placement().starts(unnamed)]


def test_other_servers_are_hashed() -> None:
    job = job_of(0, 0)
    keys = (Keys("large", 1 << 16, (1,)), Keys("in", 0, (0,)))
    job = replace(job, strategy=replace(job.strategy, keys=keys))
    changed = change(job, Changes(servers=3)).strategy.keys
    assert changed == (Keys("large", 1 << 16),)
    assert change(job, Changes(compute_scale=2.0)).strategy.keys == keys
