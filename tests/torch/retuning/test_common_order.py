"""The order that ranks agree on, in step over a network in one process.

A real job: tests/bench/test_execute.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from byteprophet._plugin import Learned, Plugin
from byteprophet.job.order_file import Order, read_order
from byteprophet.session import process
from byteprophet.torch.retuning.common_order import CommonOrder
from byteprophet.torch.sync.order_planner import OrderPlanner

MBIT = 1_000_000
UNKNOWN = Learned()


def knowing(bandwidth_bps: int, last_ns: int, tensors: int = 2, has_plan: bool = False) -> Learned:
    """The first tensor of the forward pass is ready last."""
    ready_ns = {number: last_ns * (tensors - number) // tensors for number in range(tensors)}
    return Learned(bandwidth_bps, has_plan, ready_ns)


@dataclass
class Worker:
    """One rank's plug-in. ``knows``: what its policy has learned after each step."""

    knows: Sequence[Learned]
    step: int = 0
    staged: list[tuple[int, int, Mapping[int, int]]] = field(default_factory=list)

    def learned(self) -> Learned:
        return self.knows[self.step]

    def stage_order(self, bandwidth_bps: int, ready_ns: Mapping[int, int]) -> int:
        self.staged.append((self.step, bandwidth_bps, ready_ns))
        return self.iteration() + 1

    def iteration(self) -> int:
        return self.step + 1


def common_order(rank: Any, worker: Worker, timeout_s: float = 20.0) -> CommonOrder:
    return CommonOrder(rank, OrderPlanner(cast(Plugin, worker)), timeout_s)


def train(
    network: Any, knows: Mapping[int, Sequence[Learned]], agreed: bool = True
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
    slowest = knowing(200 * MBIT, 9000, tensors=3)
    knows = {
        0: [knowing(300 * MBIT, 1000)] * 3,
        1: [knowing(100 * MBIT, 3000)] * 3,
        2: [slowest] * 3,
    }
    for worker in train(make_network(size=3, late_s=0.002), knows):
        assert worker.staged == [(0, 100 * MBIT, slowest.ready_ns)]


def test_who_knows_nothing_is_not_asked(make_network: Callable[..., Any]) -> None:
    known = knowing(100 * MBIT, 10)
    knows = {0: [UNKNOWN] * 3, 1: [known] * 3, 2: [UNKNOWN] * 3}
    for worker in train(make_network(size=3), knows):
        assert worker.staged == [(0, 100 * MBIT, known.ready_ns)]


@pytest.mark.parametrize("other", [UNKNOWN, knowing(MBIT, 10, has_plan=True)])
def test_without_knowledge_or_beside_a_plan_there_is_no_order(
    other: Learned, make_network: Callable[..., Any]
) -> None:
    own = UNKNOWN if other is UNKNOWN else knowing(MBIT, 10)
    for worker in train(make_network(size=2), {0: [own] * 20, 1: [other] * 20}):
        assert worker.staged == []


def test_nothing_is_asked_before_priorities_are_agreed(make_network: Callable[..., Any]) -> None:
    network = make_network(size=2)
    train(network, {rank: [knowing(MBIT, 10)] * 10 for rank in range(2)}, agreed=False)
    assert network.submitted == []


@pytest.mark.parametrize(
    ("later", "times_agreed"),
    [
        (knowing(100 * MBIT, 1000), 1),
        (knowing(105 * MBIT, 950), 1),
        (knowing(80 * MBIT, 1000), 2),
        (knowing(100 * MBIT, 1200), 2),
        (knowing(100 * MBIT, 1000, tensors=3), 2),
        (Learned(100 * MBIT, False, {0: 1000, 1: 900}), 2),
    ],
)
def test_they_agree_again_only_after_a_change(
    later: Learned, times_agreed: int, make_network: Callable[..., Any]
) -> None:
    knows = [knowing(100 * MBIT, 1000)] * 30 + [later] * 100
    first, second = train(make_network(size=2), {0: knows, 1: knows})
    assert first.staged == second.staged
    assert len(first.staged) == times_agreed
    last = later if times_agreed == 2 else knows[0]
    assert first.staged[-1][1:] == (last.bandwidth_bps, last.ready_ns)


@pytest.mark.parametrize(("tensors", "orders"), [(2048, 1), (2049, 0)])
def test_on_too_many_tensors_they_do_not_agree(
    tensors: int, orders: int, make_network: Callable[..., Any]
) -> None:
    many = knowing(MBIT, 1_000_000, tensors)
    for worker in train(make_network(size=2), {0: [many] * 2, 1: [many] * 2}):
        assert [order[2] for order in worker.staged] == [many.ready_ns] * orders


def test_after_resuming_it_starts_anew(make_network: Callable[..., Any]) -> None:
    worker = Worker([knowing(MBIT, 10)])
    order = common_order(make_network(size=1).rank(), worker)
    order.declare()
    for resumed in range(1, 3):
        for _ in range(3):
            order.after_step("first", agreed=True)
        assert len(worker.staged) == resumed
        order.restart()


def test_a_new_optimizer_takes_over(make_network: Callable[..., Any]) -> None:
    worker = Worker([knowing(MBIT, 10)])
    order = common_order(make_network(size=1).rank(), worker)
    order.declare()
    order.after_step("first", agreed=True)
    order.after_step("second", agreed=True)
    assert len(worker.staged) == 1
    order.declare()
    order.after_step("second", agreed=True)
    order.after_step("first", agreed=True)
    assert len(worker.staged) == 2


def test_what_is_in_flight_when_a_new_optimizer_takes_over_is_waited_for(
    make_network: Callable[..., Any],
) -> None:
    knows = [knowing(MBIT, 10)] * 5 + [knowing(MBIT, 1000 * step) for step in range(1, 9)]
    network = make_network(size=1)
    worker = Worker(knows)
    order = common_order(network.rank(), worker)
    order.declare()
    for step in range(len(knows)):
        worker.step = step
        if step > 5:
            order.declare()
        order.after_step("first", agreed=True)
    sent = [name for _, name, _ in network.submitted if name == "byteprophet.order.times"]
    assert len(worker.staged) == len(sent) > 5
    assert worker.staged[-1][2] == knows[-1].ready_ns


def test_a_rank_that_is_gone_is_said(make_network: Callable[..., Any]) -> None:
    network = make_network(size=2)
    order = common_order(network.rank(), Worker([knowing(MBIT, 10)]), timeout_s=0.2)
    order.declare()
    with pytest.raises(RuntimeError, match=r"waited 0\.2 s for the ready times that ranks know"):
        order.after_step("first", agreed=True)


@pytest.mark.parametrize(
    ("later", "since"),
    [
        (knowing(2 * MBIT, 1000), 2),
        (knowing(MBIT, 2000), 2),
        (knowing(MBIT, 1000, tensors=1), 6),
    ],
)
def test_the_order_in_use_is_written_and_since_when_these_tensors_have_one(
    later: Learned,
    since: int,
    make_network: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BYTEPROPHET_RUN", str(tmp_path))
    monkeypatch.setattr(process, "_names", {0: "first", 1: "last"})
    knows = [knowing(MBIT, 1000)] * 4 + [later]
    train(make_network(size=2), dict.fromkeys(range(2), knows[:1]))
    assert read_order(tmp_path) is None  # its iteration never begins
    train(make_network(size=2), dict.fromkeys(range(2), knows))
    assert read_order(tmp_path) == Order(MBIT, {"first": 1000, "last": 500}, since=2)
    knows += [later] * 2
    train(make_network(size=2), dict.fromkeys(range(2), knows))
    names = {0: "first", 1: "last"}
    ready = {names[tensor]: at_ns for tensor, at_ns in later.ready_ns.items()}
    assert read_order(tmp_path) == Order(later.bandwidth_bps, ready, since)
