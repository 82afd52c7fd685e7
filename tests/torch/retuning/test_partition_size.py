"""The partition size that ranks agree on, in step over a network in one process.

A real job: tests/bench/test_execute.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from byteprophet.torch.retuning.partition_size import PartitionSize

START, DOUBLE, FOURFOLD = 262144, 524288, 1048576


@pytest.fixture
def ranks(make_network: Callable[..., Any]) -> list[Any]:
    network = make_network(size=3, late_s=0.002)
    return [network.rank(rank) for rank in range(3)]


def train(ranks: Sequence[Any], wishes: Sequence[Sequence[int]], agreed: bool = True) -> None:
    """A thread per rank; ``wishes``: by step, of each rank."""

    def steps(rank: Any) -> None:
        size = PartitionSize(rank, START, timeout_s=20.0)
        size.declare()
        for wish in wishes:
            rank.preferred_bytes = wish[rank.rank]
            size.after_step("first", agreed)
            size.after_step("second", agreed)
        size.drain()

    threads = [threading.Thread(target=steps, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def taken(ranks: Sequence[Any]) -> list[int]:
    """By all ranks, the same."""
    assert ranks[0].reconfigured == ranks[1].reconfigured == ranks[2].reconfigured
    return [settings["partition_bytes"] for settings in ranks[0].reconfigured]


def test_the_slowest_link_decides(ranks: list[Any]) -> None:
    train(ranks, [(FOURFOLD, DOUBLE, FOURFOLD)] * 40)
    assert taken(ranks) == [DOUBLE]


def test_who_says_nothing_is_not_asked(ranks: list[Any]) -> None:
    train(ranks, [(0, FOURFOLD, 0)] * 4)
    assert taken(ranks) == [FOURFOLD]


def test_it_follows(ranks: list[Any]) -> None:
    train(ranks, [(FOURFOLD,) * 3] * 10 + [(START,) * 3] * 80)
    assert taken(ranks) == [FOURFOLD, START]


def test_nothing_is_asked_before_the_order_is_agreed(ranks: list[Any]) -> None:
    train(ranks, [(FOURFOLD,) * 3] * 10, agreed=False)
    assert taken(ranks) == []


def test_questions_become_seldom(make_network: Callable[..., Any]) -> None:
    network = make_network(size=3)
    train([network.rank(rank) for rank in range(3)], [(START,) * 3] * 1000)
    assert len(network.submitted) <= 3 * (5 + 1000 // 16)


def test_after_resuming_it_starts_anew(make_network: Callable[..., Any]) -> None:
    rank = make_network(size=1).rank()
    rank.preferred_bytes = FOURFOLD
    size = PartitionSize(rank, START, timeout_s=20.0)
    size.declare()
    for _ in range(2):
        for _ in range(2):
            size.after_step("first", agreed=True)
        assert rank.reconfigured.pop() == {"partition_bytes": FOURFOLD}
        size.restart()


def test_after_a_new_optimizer_is_made_it_follows_that_one(
    make_network: Callable[..., Any],
) -> None:
    rank = make_network(size=1).rank()
    size = PartitionSize(rank, START, timeout_s=20.0)
    for owner, wish in (("head", FOURFOLD), ("whole", DOUBLE)):
        rank.preferred_bytes = wish
        size.declare()
        for _ in range(4):
            size.after_step(owner, agreed=True)
        assert rank.reconfigured[-1] == {"partition_bytes": wish}


def test_a_rank_that_is_gone_is_said(make_network: Callable[..., Any]) -> None:
    size = PartitionSize(make_network(size=2).rank(), START, timeout_s=0.2)
    size.declare()
    size.after_step("first", agreed=True)
    with pytest.raises(RuntimeError, match=r"waited 0\.2 s for the partition sizes"):
        size.after_step("first", agreed=True)
