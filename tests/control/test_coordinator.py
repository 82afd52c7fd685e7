"""The controller's decisions on a virtual clock: no socket, no thread."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byteprophet import _core
from byteprophet.control import issue
from byteprophet.control.adoption import MOST_ATTEMPTS
from byteprophet.control.coordinator import Coordinator
from byteprophet.control.messages import (
    LONGEST_REASON,
    Adopted,
    Bye,
    Hello,
    Inbound,
    Message,
    Plan,
    PlanOrder,
    ProfileReport,
    Refused,
    Sample,
    SamplesReport,
    Staged,
    Status,
    Unknown,
    Welcome,
)
from byteprophet.control.plan import Facts, Solution, solve
from byteprophet.profile import Profile

from .conftest import JOB, MEGABYTE, MS, profile

TICK_NS = 50 * MS
SECOND_NS = 1000 * MS


class Worker:
    """A client on the virtual clock; ``delay_ns`` is how long its messages and answers take."""

    def __init__(self, name: str, delay_ns: int = 0, iteration_ns: int = 100 * MS) -> None:
        self.name = name
        self.peer = name.encode()
        self.client = f"client of {name}"
        self.began_ns = 0
        self.count = 2
        self.delay_ns = delay_ns
        self.iteration_ns = iteration_ns
        self.profile: Profile | None = profile(1000, 1000)
        self.number = 0
        self.samples: Sequence[Sample] = ()
        self.last_plan = 0
        self.told: set[object] = set()
        self.pending: Plan | None = None
        self.adopted: list[tuple[int, int]] = []
        self.reported = 0
        self.partition_bytes = 4096
        self.busy: float | None = None
        self.took_ns: int | None = iteration_ns  # None: its front does not know
        self.settings = {"partition_bytes": 4096}
        self.lost = 0  # plans that do not arrive

    def iteration(self, now_ns: int) -> int:
        return (now_ns - self.began_ns) // self.iteration_ns

    def begin_again(self, now_ns: int) -> None:
        """Another client, as after ``resume``, or in a new process of the same name."""
        self.client, self.began_ns = f"{self.name} since {now_ns}", now_ns
        self.told.clear()
        self.pending, self.profile = None, None
        self.reported = self.last_plan = 0

    def say(self, kind: type, **fields: Any) -> Inbound:
        message: Inbound = kind(job=JOB, worker=self.name, **fields)
        return message

    def hear(self, message: Message, now_ns: int) -> list[Inbound]:
        if isinstance(message, Unknown):
            self.told.clear()
        if isinstance(message, Welcome):
            self.told.add("hello")
        if not isinstance(message, PlanOrder):
            return []
        plan = message.plan
        if self.lost:
            self.lost -= 1
            return []
        late = self.iteration(now_ns) >= plan.at_iteration
        if not late:
            self.pending, self.last_plan = plan, plan.number
        error = "too late" if late else None
        return [self.say(Staged, number=plan.number, late=late, error=error)]

    def report(self, now_ns: int) -> list[Inbound]:
        iteration = self.iteration(now_ns)
        if "hello" not in self.told:
            return [
                self.say(
                    Hello,
                    client=self.client,
                    workers=self.count,
                    policy="prophet",
                    settings=self.settings,
                    iteration=iteration,
                    plan=self.last_plan,
                )
            ]
        said: list[Inbound] = []
        if self.pending is not None and iteration >= self.pending.at_iteration:
            plan, self.pending = self.pending, None
            self.adopted.append((plan.number, plan.at_iteration))
            said.append(self.say(Adopted, number=plan.number, iteration=plan.at_iteration))
        took = [(i, self.took_ns) for i in range(self.reported, iteration) if self.took_ns]
        self.reported = iteration
        said.append(
            self.say(
                Status,
                iteration=iteration,
                partition_bytes=self.partition_bytes,
                busy=self.busy,
                took=took,
                refused={},
            )
        )
        if self.profile is not None and ("profile", self.number) not in self.told:
            self.told.add(("profile", self.number))
            numbered = self.profile.model_copy(update={"number": self.number + 1})
            said.append(self.say(ProfileReport, profile=numbered))
        if self.samples and tuple(self.samples) not in self.told:
            self.told.add(tuple(self.samples))
            said.append(self.say(SamplesReport, samples=list(self.samples)))
        return said


class World:
    """Passes messages between a coordinator and workers, each with its delay, both ways."""

    def __init__(self, *workers: Worker) -> None:
        self.workers = {worker.peer: worker for worker in workers}
        self.now_ns = 0
        self.events: list[dict[str, Any]] = []
        self.orders: list[tuple[int, Plan]] = []
        self._under_way: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self.restart()

    def restart(self) -> None:
        def record(event: str, **fields: Any) -> None:
            self.events.append({"event": event, "now_ns": self.now_ns, **fields})

        self.coordinator = Coordinator(JOB, f"life {self._sequence}", record, lambda: self.now_ns)

    def named(self, event: str) -> list[dict[str, Any]]:
        return [one for one in self.events if one["event"] == event]

    def run(self, seconds: float) -> None:
        end_ns = self.now_ns + int(seconds * SECOND_NS)
        while self.now_ns < end_ns:
            self.now_ns += TICK_NS
            for worker in self.workers.values():
                if self.now_ns % (5 * TICK_NS) == 0:
                    self._to_coordinator(worker, worker.report(self.now_ns))
            due = sorted(one for one in self._under_way if one[0] <= self.now_ns)
            self._under_way = [one for one in self._under_way if one[0] > self.now_ns]
            for _, _, act in due:
                act()
            sends = self.coordinator.tick(self.now_ns)
            if sends:
                self.orders.append((self.now_ns, sends[0][1].plan))
            self._deliver(sends)

    def _later(self, delay_ns: int, act: Callable[[], None]) -> None:
        self._sequence += 1
        self._under_way.append((self.now_ns + delay_ns, self._sequence, act))

    def _to_coordinator(self, worker: Worker, messages: Sequence[Inbound]) -> None:
        def arrive(message: Inbound) -> None:
            self._deliver(self.coordinator.receive(worker.peer, message, self.now_ns))

        for message in messages:
            self._later(worker.delay_ns, lambda message=message: arrive(message))  # type: ignore[misc]

    def _deliver(self, sends: Sequence[tuple[bytes, Message]]) -> None:
        def arrive(worker: Worker, message: Message) -> None:
            self._to_coordinator(worker, worker.hear(message, self.now_ns))

        for peer, message in sends:
            worker = self.workers.get(peer)
            if worker is not None:
                self._later(
                    worker.delay_ns,
                    lambda worker=worker, message=message: arrive(worker, message),  # type: ignore[misc]
                )


def test_both_adopt_one_plan_at_one_iteration_and_its_outcome_is_told() -> None:
    a, b = Worker("worker-0"), Worker("worker-1", iteration_ns=100 * MS)
    world = World(a, b)
    world.run(8)
    assert len(world.orders) == 1
    assert len(a.adopted) == 1
    assert a.adopted == b.adopted
    (outcome,) = world.named("outcome")
    assert outcome["measured_iteration_ns"] == 100 * MS
    predicted_ns = world.orders[0][1].predicted_iteration_ns
    assert outcome["error"] == pytest.approx(100 * MS / predicted_ns - 1, abs=1e-4)


def test_a_plan_is_in_force_once_all_workers_have_adopted_it() -> None:
    a, b = Worker("worker-0"), Worker("worker-1", iteration_ns=200 * MS)
    world = World(a, b)
    while not a.adopted:
        assert world.coordinator.plan_in_force is None
        world.run(0.05)
    world.run(0.5)
    assert not b.adopted  # its iteration has not begun there
    assert world.coordinator.plan_in_force is None
    world.run(5)
    ((_, plan),) = world.orders
    assert world.coordinator.plan_in_force == plan
    for worker in (a, b):
        worker.number = 1  # a new profile
    while len(world.orders) < 2:
        world.run(0.05)
    assert world.coordinator.plan_in_force is None
    for worker in (a, b):
        world.coordinator.receive(worker.peer, worker.say(Bye), world.now_ns)
    assert world.coordinator.plan_in_force is None  # nobody has ever used the second one


def test_a_plan_that_took_long_to_make_is_for_an_iteration_after_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, b = Worker("worker-0"), Worker("worker-1")
    world = World(a, b)

    def solve_slowly(facts: Facts) -> Solution:
        world.now_ns += 7 * SECOND_NS  # longer than answers are waited for
        return solve(facts)

    monkeypatch.setattr(issue, "solve", solve_slowly)
    world.run(15)
    ((_, plan),) = world.orders
    assert a.adopted == b.adopted == [(plan.number, plan.at_iteration)]
    assert not world.named("withdrawn")


def test_predicted_is_the_job_with_todays_partitions() -> None:
    """A message costs 0.1 ms: with few of them the same job is much shorter."""
    link = Sample(server=0, direction="push", bandwidth_bps=10**9, message_cost_ns=MS // 10)
    predicted_ns = []
    for partition_bytes in (4096, 1 << 20):
        workers = [Worker("worker-0"), Worker("worker-1")]
        for worker in workers:
            worker.partition_bytes = partition_bytes
            worker.profile = profile(10 << 20, 10 << 20)
            worker.samples = [link]
        world = World(*workers)
        world.run(8)
        predicted_ns.append(world.orders[-1][1].predicted_iteration_ns)
    assert predicted_ns[0] > 1.5 * predicted_ns[1]


def test_a_plan_comes_soon_where_only_iterations_are_counted() -> None:
    """As in MXNet jobs: what a plan predicts may be far below what an iteration takes."""
    a, b = Worker("worker-0", iteration_ns=200 * MS), Worker("worker-1", iteration_ns=200 * MS)
    told((a, b), took_ns=None, profile=None)
    world = World(a, b)
    world.run(2)
    told((a, b), profile=profile(1000, 1000))
    world.run(3)
    ((_, plan),) = world.orders
    assert plan.predicted_iteration_ns < 50 * MS
    assert a.adopted == b.adopted == [(plan.number, plan.at_iteration)]


def test_a_prediction_without_forward_passes_says_so() -> None:
    """As in MXNet jobs, whose front does not see them."""
    a, b = Worker("worker-0"), Worker("worker-1")
    world = World(a, b)
    world.run(5)
    assert "without forward passes" not in world.orders[-1][1].reason
    for worker in (a, b):
        tensors = tuple(
            tensor.model_copy(update={"forward_ns": 0}) for tensor in profile(1000, 1000).tensors
        )
        worker.profile = profile(1000, 1000).model_copy(
            update={"forward_ns": 0, "tensors": tensors}
        )
        worker.number = 1
    world.run(5)
    assert world.orders[-1][1].reason.startswith("predicted without forward passes")


def test_no_plan_before_all_workers_have_a_profile() -> None:
    a, b = Worker("worker-0"), Worker("worker-1")
    b.profile = None
    world = World(a, b)
    world.run(10)
    assert not world.orders
    b.profile = profile(1000, 1000)
    world.run(1)
    assert len(world.orders) == 1


def test_a_worker_that_never_comes_is_not_waited_for_for_ever() -> None:
    world = World(Worker("worker-0"))  # of two, as its hello says
    world.run(15)
    assert not world.orders
    world.run(20)
    assert len(world.orders) == 1


def test_a_link_that_keeps_changing_does_not_prolong_the_wait() -> None:
    worker = Worker("worker-0")  # of two
    world = World(worker)
    for second in range(60):
        sample = Sample(server=0, direction="push", bandwidth_bps=10**9 << second % 3)
        worker.samples = [sample.model_copy(update={"delay_ns": second})]
        world.run(1)
    assert len(world.orders) == 2


def test_who_is_too_late_gets_the_plan_anew_with_a_wider_margin() -> None:
    near, far = Worker("worker-0"), Worker("worker-1", delay_ns=1700 * MS)
    world = World(near, far)
    world.run(20)
    plans = [plan for _, plan in world.orders]
    assert len(plans) > 1
    assert [plan.number for plan in plans] == list(range(1, len(plans) + 1))
    assert near.adopted[-1] == far.adopted[-1] == (plans[-1].number, plans[-1].at_iteration)
    assert world.named("withdrawn")[0]["missed_by"] == ["worker-1"]


def test_a_worker_that_cannot_be_reached_in_time_ends_the_attempts() -> None:
    far = Worker("worker-1")
    far.lost = 10**6
    world = World(Worker("worker-0"), far)
    world.run(120)
    assert len(world.orders) == MOST_ATTEMPTS


def test_a_plan_that_many_are_too_late_for_is_issued_anew() -> None:
    """Their names together are longer than a plan's reason may be."""
    late = [Worker(f"worker-{n}-{'x' * 150}", delay_ns=1700 * MS) for n in range(8)]
    world = World(*late)
    world.run(20)
    reasons = [plan.reason for _, plan in world.orders]
    assert any("came too late" in reason and len(reason) == LONGEST_REASON for reason in reasons)


def test_numbers_that_leave_no_room_for_a_plan_are_no_end() -> None:
    """Each is in the range of its message."""
    counted, far, fast = (Worker("worker-0") for _ in range(3))
    counted.last_plan = 1 << 50
    far.iteration = lambda now_ns: (1 << 50) - 1  # type: ignore[method-assign]
    far.reported = 1 << 50
    fast.samples = [
        Sample(server=number, direction="push", bandwidth_bps=1 << 50) for number in range(10_000)
    ]
    for one in (counted, far, fast):
        world = World(one, Worker("worker-1"))
        world.run(5)
        assert not world.orders
        assert world.named("no plan")[0]["error"]


def test_a_plan_that_the_plug_in_refuses_is_not_repeated() -> None:
    a, b = Worker("worker-0"), Worker("worker-1")
    hear = b.hear

    def refuse(message: Message, now_ns: int) -> list[Inbound]:
        if isinstance(message, PlanOrder):
            return [b.say(Staged, number=message.plan.number, error="no such setting")]
        return hear(message, now_ns)

    b.hear = refuse  # type: ignore[method-assign]
    world = World(a, b)
    world.run(30)
    assert len(world.orders) == 1
    (refused,) = world.named("plan refused")
    assert (refused["worker"], refused["error"]) == ("worker-1", "no such setting")


def test_a_new_profile_brings_a_new_plan() -> None:
    a, b = Worker("worker-0"), Worker("worker-1")
    world = World(a, b)
    world.run(5)
    for worker in (a, b):
        worker.profile, worker.number = profile(1000, 1000, backward_ns=5 * MS), 1
    world.run(5)
    assert len(world.orders) == 2
    assert "profile 2 of worker-0" in world.orders[1][1].reason
    assert a.adopted == b.adopted


def test_the_others_have_a_moment_to_profile_anew_too() -> None:
    a, b = Worker("worker-0"), Worker("worker-1")
    world = World(a, b)
    world.run(5)
    a.number = 1
    world.run(0.5)
    b.number = 1
    world.run(5)
    assert len(world.orders) == 2
    assert "profile 2 of worker-0; profile 2 of worker-1" in world.orders[1][1].reason
    a.number = 2
    world.run(5)
    assert len(world.orders) == 3  # the other one's has not changed


def test_only_a_bandwidth_that_really_moved_brings_a_new_plan() -> None:
    a, b = Worker("worker-0"), Worker("worker-1")

    def measure(bps: int, spread_bps: int) -> None:
        for worker in (a, b):
            worker.samples = [
                Sample(server=0, direction="push", bandwidth_bps=bps, spread_bps=spread_bps)
            ]

    world = World(a, b)
    measure(10**9, 0)
    world.run(6)
    plans = len(world.orders)
    measure(1_080_000_000, 0)
    world.run(4)
    measure(1_300_000_000, 400_000_000)
    world.run(4)
    measure(920_000_000, 0)
    world.run(4)
    assert len(world.orders) == plans
    measure(3 * 10**9, 10_000_000)
    world.run(4)
    assert len(world.orders) == plans + 1
    assert "became 3000000000" in world.orders[-1][1].reason


def on_link(bps: int, spread_bps: int = 0) -> list[Sample]:
    return [Sample(server=None, direction="push", bandwidth_bps=bps, spread_bps=spread_bps)]


def planners(**fields: Any) -> tuple[Worker, Worker]:
    """Two workers whose plans have all settings of ``prophet``, with ``fields`` set."""
    both = Worker("worker-0"), Worker("worker-1")
    for worker in both:
        worker.settings = dict(_core.default_settings("prophet"))
        worker.profile = profile(*([MEGABYTE] * 20))
    told(both, **fields)
    return both


def told(workers: Sequence[Worker], **fields: Any) -> None:
    for worker in workers:
        for name, value in fields.items():
            setattr(worker, name, value)


def test_a_plan_for_a_link_that_wavered_does_not_outlast_that() -> None:
    both = planners(samples=on_link(480_000_000, 20_000_000))
    world = World(*both)
    world.run(10)
    told(both, samples=on_link(200_000_000, 250_000_000))
    world.run(10)
    assert world.orders[-1][1].settings["plan_bandwidth_bps"] == 200_000_000
    told(both, samples=on_link(430_000_000, 10_000_000))
    world.run(10)
    assert world.orders[-1][1].settings["plan_bandwidth_bps"] == 430_000_000


@pytest.mark.parametrize("hog_s", [8, 15, 20])
def test_a_plan_made_while_others_used_the_cores_does_not_outlast_them(hog_s: int) -> None:
    usual, slow = 340 * MS, 748 * MS
    both = planners(samples=on_link(480_000_000), busy=0.45, took_ns=usual, iteration_ns=usual)
    world = World(*both)
    world.run(20)
    told(both, busy=1.0, took_ns=slow)
    world.run(5)
    told(both, samples=on_link(400_000_000))
    world.run(hog_s - 5)
    assert world.orders[-1][1].settings["in_order"] == 1
    told(both, samples=on_link(481_000_000))
    world.run(4)  # the busy share and the usual time are of the last seconds
    told(both, busy=0.45, took_ns=usual)
    world.run(60)
    last = world.orders[-1][1].settings
    assert (last["in_order"], last["plan_bandwidth_bps"]) == (0, 481_000_000)


def test_cores_that_become_the_limit_bring_a_plan_and_a_moment_of_them_does_not() -> None:
    both = planners(samples=on_link(480_000_000), busy=0.45, took_ns=340 * MS)
    world = World(*both)
    world.run(20)
    plans = len(world.orders)
    told(both, busy=1.0, took_ns=748 * MS)
    world.run(4)
    told(both, busy=0.45, took_ns=340 * MS)
    world.run(20)
    assert len(world.orders) == plans
    told(both, busy=1.0, took_ns=748 * MS)
    world.run(12)
    assert world.orders[-1][1].settings["in_order"] == 1
    assert "the processor needs 748.0 ms" in world.orders[-1][1].reason


def test_a_planned_order_follows_order_of_arrival_that_was_slower_once_cores_are_idle() -> None:
    both = planners(samples=on_link(10**10), busy=0.95, profile=None)
    world = World(*both)
    world.run(5)
    told(both, profile=profile(*([MEGABYTE] * 20)))
    world.run(5)
    told(both, took_ns=110 * MS)
    world.run(10)
    assert world.orders[-1][1].settings["plan_bandwidth_bps"] == 0  # what was before it
    told(both, busy=0.02, took_ns=100 * MS)
    world.run(30)
    assert world.orders[-1][1].settings["plan_bandwidth_bps"] == 10**10


def test_a_host_near_the_thresholds_does_not_change_the_order_again_and_again() -> None:
    both = planners(samples=on_link(480_000_000))
    world = World(*both)
    for second in range(300):
        told(both, busy=(0.55, 0.95, 0.75)[second % 3], took_ns=350 * MS)
        world.run(1)
    orders = [plan.settings["in_order"] for _, plan in world.orders]
    assert sum(before != after for before, after in pairwise(orders)) <= 1


def test_a_load_that_wanders_around_the_threshold_does_not_change_the_order_again_and_again() -> (
    None
):
    """It stays on one side for half a minute at a time, longer than any plan must be held."""
    draw = random.Random(1)
    both = planners(samples=on_link(480_000_000))
    world = World(*both)
    away = 0.0
    for _ in range(600):
        away = 0.95 * away + draw.gauss(0, 0.02)
        told(both, busy=min(1.0, max(0.0, 0.86 + away + draw.gauss(0, 0.03))), took_ns=420 * MS)
        world.run(1)
    orders = [plan.settings["in_order"] for _, plan in world.orders]
    assert sum(before != after for before, after in pairwise(orders)) <= 3


def test_a_plan_made_while_the_job_stands_still_is_not_for_a_far_iteration() -> None:
    class Evaluating(Worker):
        def iteration(self, now_ns: int) -> int:
            return super().iteration(min(now_ns, 30 * SECOND_NS))

    both = Evaluating("worker-0"), Evaluating("worker-1")
    world = World(*both)
    world.run(330)
    told(both, number=1)  # a new profile
    world.run(5)
    assert world.orders[-1][1].at_iteration <= 300 + 20 + 2 + 10 + 2 + 1


def test_busy_hosts_have_gradients_go_as_they_come_until_links_are_the_limit() -> None:
    """At one iteration, and no plan for bandwidths that do not matter meanwhile."""
    a, b = Worker("worker-0"), Worker("worker-1")

    def measure(bps: int) -> None:
        for worker in (a, b):
            worker.samples = [Sample(server=0, direction="push", bandwidth_bps=bps)]

    for worker in (a, b):
        worker.settings = dict(_core.default_settings("prophet"))
        worker.profile = None
        worker.busy = 0.9
    measure(10 * 10**9)
    world = World(a, b)
    world.run(3)
    a.profile = b.profile = profile(*([MEGABYTE] * 20))
    world.run(12)
    ((_, first),) = world.orders
    assert first.settings["in_order"] == 1
    assert first.reason.startswith("in order of arrival, because the processor is the limit: it ")
    assert a.adopted == b.adopted == [(first.number, first.at_iteration)]
    measure(8 * 10**9)
    world.run(6)
    assert len(a.adopted) == 1
    measure(5 * 10**8)
    world.run(6)
    assert len(a.adopted) == len(b.adopted) == 2
    assert a.adopted == b.adopted
    assert world.orders[-1][1].settings["in_order"] == 0
    assert world.orders[-1][1].settings["plan_bandwidth_bps"] == 5 * 10**8


def test_order_of_arrival_that_was_slower_is_left() -> None:
    a, b = Worker("worker-0"), Worker("worker-1")
    for worker in (a, b):
        worker.settings = dict(_core.default_settings("prophet"))
        worker.profile = None
        worker.busy = 0.9
        worker.samples = [Sample(server=0, direction="push", bandwidth_bps=10**10)]
    world = World(a, b)
    world.run(5)
    a.profile = b.profile = profile(*([MEGABYTE] * 20))
    world.run(5)
    ((_, at),) = a.adopted
    a.took_ns = b.took_ns = 110 * MS
    world.run(10)
    last = world.orders[-1][1]
    assert last.settings["in_order"] == 0
    assert "took 110.0 ms, 100.0 ms before" in last.reason
    assert last.at_iteration > at
    assert a.adopted == b.adopted
    assert len(a.adopted) == 2


def test_a_storm_of_profiles_is_no_storm_of_plans() -> None:
    a, b = Worker("worker-0"), Worker("worker-1")
    world = World(a, b)
    for _ in range(80):
        a.number += 1
        world.run(0.25)
    assert 5 <= len(world.orders) <= 11  # in twenty seconds
    moments = [now_ns for now_ns, _ in world.orders]
    assert all(after - before >= 2 * SECOND_NS for before, after in pairwise(moments))


def test_a_controller_that_comes_back_counts_on() -> None:
    a, b = Worker("worker-0"), Worker("worker-1")
    world = World(a, b)
    world.run(5)
    before = world.orders[-1][1].number
    world.restart()
    world.run(5)
    assert [plan.number for _, plan in world.orders][-1] == before + 1
    assert a.adopted == b.adopted
    assert len(a.adopted) == 2


def test_silence_counts_as_leaving_and_coming_back_as_joining() -> None:
    a, b = Worker("worker-0"), Worker("worker-1")
    world = World(a, b)
    world.run(5)
    away = world.workers.pop(b.peer)
    world.run(12)
    (left,) = world.named("left")
    assert (left["worker"], left["how"]) == ("worker-1", "silent")
    world.workers[b.peer] = away
    world.run(5)
    assert [event["worker"] for event in world.named("joined")].count("worker-1") == 2
    assert a.adopted[-1] == b.adopted[-1]


def ranks_that_trained(seconds: float) -> tuple[World, Worker, Worker]:
    a, b = Worker("worker-0"), Worker("worker-1")
    world = World(a, b)
    world.run(seconds)
    assert len(a.adopted) == 1
    return world, a, b


@pytest.mark.parametrize("goodbyes", ["arrive", "are lost"])
def test_ranks_that_resume_and_a_new_one_adopt_the_known_plan_together(goodbyes: str) -> None:
    """The new one says hello first, and nobody has a profile yet."""
    world, a, b = ranks_that_trained(100)
    c = Worker("worker-2")
    del world.workers[a.peer], world.workers[b.peer]
    if goodbyes == "arrive":
        for worker in (a, b):
            world.coordinator.receive(worker.peer, worker.say(Bye), world.now_ns)
        resumed = (c, a, b)
    else:
        world.run(11)
        resumed = (a, c, b)
    began_ns = world.now_ns
    for worker in resumed:
        worker.begin_again(began_ns)
        worker.count = 3
        world.workers[worker.peer] = worker
        world.run(0.5)
    world.run(4)
    last = {worker.adopted[-1] for worker in resumed}
    assert last == {(world.orders[-1][1].number, world.orders[-1][1].at_iteration)}
    assert world.now_ns - began_ns < 6 * SECOND_NS
    for worker in resumed:
        worker.profile = profile(1000, 1000)
    world.run(5)
    assert len({worker.adopted[-1] for worker in resumed}) == 1
    assert world.orders[-1][1].number > max(number for number, _ in last)


def test_a_count_from_before_a_resumption_is_no_reason_to_wait() -> None:
    """The goodbye of one is lost: for a while it counts as present, far ahead of the others."""
    world, a, b = ranks_that_trained(100)
    world.coordinator.receive(a.peer, a.say(Bye), world.now_ns)
    del world.workers[a.peer], world.workers[b.peer]
    c = Worker("worker-2")
    for worker in (c, a):
        worker.begin_again(world.now_ns)
        world.workers[worker.peer] = worker
    world.run(5)
    assert not [event for event in world.named("left") if event["how"] == "silent"]
    assert a.adopted[-1] == c.adopted[-1]
    assert a.adopted[-1][1] < 50


def test_one_that_comes_back_alone_gets_the_known_plan_at_once() -> None:
    """The others, whose counts are others, keep it and are not waited for."""
    world, a, b = ranks_that_trained(100)
    world.coordinator.receive(b.peer, b.say(Bye), world.now_ns)
    b.begin_again(world.now_ns)
    world.run(4)
    assert b.adopted[-1][0] == world.orders[-1][1].number
    assert b.adopted[-1][1] < 40
    assert not world.named("withdrawn")
    assert len(a.adopted) == 1


def test_a_second_worker_of_one_name_is_refused_while_the_first_lives() -> None:
    world = World(Worker("worker-0"), Worker("worker-1"))
    world.run(2)
    hello = Worker("worker-1").report(0)[0].model_copy(update={"client": "another"})
    with pytest.raises(Refused, match="here already"):
        world.coordinator.receive(b"elsewhere", hello, world.now_ns)
    # Nor does anybody listen to a connection that has not said hello.
    bye = Bye(job=JOB, worker="worker-1")
    ((peer, answer),) = world.coordinator.receive(b"elsewhere", bye, world.now_ns)
    assert (peer, type(answer)) == (b"elsewhere", Unknown)
    assert not world.named("left")


def test_workers_of_another_policy_are_refused() -> None:
    world = World(Worker("worker-0"))
    world.run(2)
    hello = Worker("worker-1").report(0)[0].model_copy(update={"policy": "p3"})
    with pytest.raises(Refused, match="another policy"):
        world.coordinator.receive(b"worker-1", hello, world.now_ns)


@settings(max_examples=25)
@given(
    st.tuples(st.integers(0, 1500), st.integers(0, 1500)),
    st.tuples(st.integers(10, 900), st.integers(0, 20)),
    st.integers(0, 3),
    st.lists(st.sampled_from(["restart", "profile", "wait"]), max_size=4),
)
def test_whatever_happens_one_number_is_one_plan(
    delays_ms: tuple[int, int], iterations_ms: tuple[int, int], lost: int, happenings: list[str]
) -> None:
    """Numbers only grow; who adopts plan n does so at the iteration that plan n has."""
    pace_ms, lag_ms = iterations_ms
    a = Worker("worker-0", delays_ms[0] * MS, pace_ms * MS)
    b = Worker("worker-1", delays_ms[1] * MS, (pace_ms + lag_ms) * MS)
    b.lost = lost
    world = World(a, b)
    world.run(6)
    for happening in happenings:
        if happening == "restart":
            world.restart()
        elif happening == "profile":
            b.number += 1
        world.run(6)
    numbers = [plan.number for _, plan in world.orders]
    planned: dict[int, set[int]] = {}
    for _, plan in world.orders:
        planned.setdefault(plan.number, set()).add(plan.at_iteration)
    if "restart" not in happenings:  # one whose only plan nobody had accepted cannot be known of
        assert numbers == sorted(set(numbers))
    for worker in (a, b):
        assert [n for n, _ in worker.adopted] == sorted({n for n, _ in worker.adopted})
        assert all(at in planned[n] for n, at in worker.adopted)


def test_tensors_that_nothing_can_plan_for_are_told_at_once() -> None:
    """In range one by one; in partitions of 4096 bytes they would fill the memory."""
    a, b = Worker("worker-0"), Worker("worker-1")
    a.profile = b.profile = profile(2**50, 2**40)
    world = World(a, b)
    world.run(4)
    assert not world.orders
    assert "partitions of 4096 bytes: there would be" in world.named("no plan")[0]["error"]


def test_a_job_has_so_many_workers() -> None:
    coordinator = Coordinator(JOB, "x", lambda event, **fields: None, lambda: 0)
    for number in range(1024):
        hello = Worker(f"worker-{number}").report(0)[0]
        assert coordinator.receive(b"peer", hello, 0)
    with pytest.raises(Refused, match="too many workers: one-more"):
        coordinator.receive(b"peer", Worker("one-more").report(0)[0], 0)
    assert coordinator.receive(b"peer", Worker("worker-0").report(0)[0], 0)
