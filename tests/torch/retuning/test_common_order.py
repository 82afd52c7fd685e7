"""The order that ranks agree on, in step over a network in one process.

A real job: tests/bench/test_execute.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from byteprophet.job.order_file import Order, read_order
from byteprophet.session import process
from byteprophet.torch.retuning.common_order import CommonOrder
from byteprophet.torch.sync.order_planner import OrderPlanner, ReadyTimes

MBIT = 1_000_000
UNKNOWN: tuple[int, ReadyTimes] = (0, [])


def times(last_ns: int, tensors: int = 2) -> ReadyTimes:
    """The first tensor of the forward pass is ready last."""
    return [
        (number, -1 - number, last_ns * (tensors - number) // tensors, number)
        for number in range(tensors)
    ]


@dataclass
class Worker:
    """One rank's plug-in. ``knows``: what its policy has learned after each step."""

    knows: Sequence[tuple[int, ReadyTimes]]
    step: int = 0
    staged: list[tuple[int, int, ReadyTimes]] = field(default_factory=list)

    def learned(self) -> tuple[int, ReadyTimes]:
        return self.knows[self.step]

    def stage_order(self, bandwidth_bps: int, times: ReadyTimes) -> int | None:
        self.staged.append((self.step, bandwidth_bps, times))
        return self.step + 2


def common_order(rank: Any, worker: Any, timeout_s: float = 20.0) -> CommonOrder:
    return CommonOrder(rank, OrderPlanner(worker), timeout_s)


def train(
    network: Any, knows: Mapping[int, Sequence[tuple[int, ReadyTimes]]], agreed: bool = True
) -> list[Worker]:
    """A thread per rank; ``knows``: by rank, what it has learned after each step."""
    workers = [Worker(knows[rank]) for rank in range(network.size)]

    def steps(rank: int) -> None:
        order = common_order(network.rank(rank), workers[rank])
        order.declare()
        for step in range(len(knows[rank])):
            workers[rank].step = step
            order.after_step("first", agreed)
            order.after_step("second", agreed)
        order.drain()

    threads = [threading.Thread(target=steps, args=(rank,)) for rank in range(network.size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return workers


def test_all_plan_with_the_slowest_link_and_the_slowest_workers_times(
    make_network: Callable[..., Any],
) -> None:
    knows = {
        0: [(300 * MBIT, times(1000))] * 3,
        1: [(100 * MBIT, times(3000))] * 3,
        2: [(200 * MBIT, times(9000, tensors=3))] * 3,
    }
    for worker in train(make_network(size=3, late_s=0.002), knows):
        assert worker.staged == [(0, 100 * MBIT, times(9000, tensors=3))]


def test_who_knows_nothing_is_not_asked(make_network: Callable[..., Any]) -> None:
    knows = {0: [UNKNOWN] * 3, 1: [(100 * MBIT, times(10))] * 3, 2: [UNKNOWN] * 3}
    for worker in train(make_network(size=3), knows):
        assert worker.staged == [(0, 100 * MBIT, times(10))]


def test_without_knowledge_there_is_no_order(make_network: Callable[..., Any]) -> None:
    for worker in train(make_network(size=2), {0: [UNKNOWN] * 20, 1: [UNKNOWN] * 20}):
        assert worker.staged == []


def test_nothing_is_asked_before_priorities_are_agreed(make_network: Callable[..., Any]) -> None:
    network = make_network(size=2)
    train(network, {rank: [(MBIT, times(10))] * 10 for rank in range(2)}, agreed=False)
    assert network.submitted == []


@pytest.mark.parametrize(
    ("later", "times_agreed"),
    [
        ((100 * MBIT, times(1000)), 1),
        ((105 * MBIT, times(950)), 1),
        ((80 * MBIT, times(1000)), 2),
        ((100 * MBIT, times(1200)), 2),
        ((100 * MBIT, times(1000, tensors=3)), 2),
        ((100 * MBIT, [(0, -1, 1000, 0), (1, -2, 900, 0)]), 2),
    ],
)
def test_they_agree_again_only_after_a_change(
    later: tuple[int, ReadyTimes], times_agreed: int, make_network: Callable[..., Any]
) -> None:
    knows = [(100 * MBIT, times(1000))] * 30 + [later] * 100
    first, second = train(make_network(size=2), {0: knows, 1: knows})
    assert first.staged == second.staged
    assert len(first.staged) == times_agreed
    assert first.staged[-1][1:] == (later if times_agreed == 2 else knows[0])


def test_after_resuming_it_starts_anew(make_network: Callable[..., Any]) -> None:
    worker = Worker([(MBIT, times(10))])
    order = common_order(make_network(size=1).rank(), worker)
    order.declare()
    for resumed in range(1, 3):
        for _ in range(3):
            order.after_step("first", agreed=True)
        assert len(worker.staged) == resumed
        order.restart()


def test_a_rank_that_is_gone_is_said(make_network: Callable[..., Any]) -> None:
    network = make_network(size=2)
    order = common_order(network.rank(), Worker([(MBIT, times(10))]), timeout_s=0.2)
    order.declare()
    with pytest.raises(RuntimeError, match=r"waited 0\.2 s for the ready times that ranks know"):
        order.after_step("first", agreed=True)


@pytest.mark.parametrize(
    ("later", "since"), [((2 * MBIT, times(1000)), 2), ((MBIT, times(2000)), 6)]
)
def test_rank_0_writes_the_order_and_since_when_it_has_such_times(
    later: tuple[int, ReadyTimes],
    since: int,
    make_network: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BYTEPROPHET_RUN", str(tmp_path))
    monkeypatch.setattr(process, "_names", {0: "first", 1: "last"})
    knows = [(MBIT, times(1000))] * 4 + [later] * 5
    train(make_network(size=2), dict.fromkeys(range(2), knows[:3]))
    assert read_order(tmp_path) == Order(MBIT, {"first": (1000, 0), "last": (500, 1)}, since=2)
    train(make_network(size=2), dict.fromkeys(range(2), knows))
    bandwidth_bps, rows = later
    ready = {"first": rows[0][2:], "last": rows[1][2:]}
    assert read_order(tmp_path) == Order(bandwidth_bps, ready, since)
