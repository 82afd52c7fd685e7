"""When gradients go in order of arrival, and when no longer."""

from __future__ import annotations

import pytest

from byteprophet.control.arrival_order import COMPARED, SETTLING, ArrivalOrder
from byteprophet.control.iteration_times import IterationTimes
from byteprophet.control.plan import HostLimit, Link, Solution

from .conftest import MS

AT = 100
WORKERS = frozenset({"worker-0", "worker-1"})
MEASURED = AT + SETTLING + COMPARED


def solution(planned_ms: int, arrival_ms: int, host_ms: int) -> Solution:
    host = HostLimit(planned_ms * MS, arrival_ms * MS, host_ms * MS)
    settings = {"in_order": 0, "plan_bandwidth_bps": 7}
    return Solution(settings, [], [], max(planned_ms, host_ms) * MS, Link(None), host)


HOST_LIMITED = solution(160, 165, 200)
NEARLY = solution(200, 206, 203)  # the plan saves 1.5%
LINK_LIMITED = solution(370, 410, 320)


def measure(order: ArrivalOrder, first: int, end: int, *took_ms: int) -> None:
    """All workers, of which each needs its time."""
    for worker, one_ms in enumerate(took_ms):
        order.times.add(f"worker-{worker}", [(n, one_ms * MS) for n in range(first, end)])


def measured() -> ArrivalOrder:
    """Two workers, whose iterations take 200 ms."""
    order = ArrivalOrder(IterationTimes())
    measure(order, AT - 60, AT, 180, 200)
    return order


def changed() -> ArrivalOrder:
    """Two workers go over to order of arrival, after iterations of 200 ms."""
    order = measured()
    order.issued(order.choose(HOST_LIMITED), AT, WORKERS)
    return order


@pytest.mark.parametrize(
    ("found", "in_order"),
    [
        (HOST_LIMITED, True),
        (NEARLY, True),
        (LINK_LIMITED, False),
        (solution(160, 165, 120), False),  # nothing to gain, but the host has time
        (solution(160, 260, 200), False),  # the host is the limit, and still the order gains
    ],
)
def test_the_model_decides(found: Solution, in_order: bool) -> None:
    assert measured().choose(found).is_in_order == in_order


def test_what_is_predicted_is_what_is_done() -> None:
    assert measured().choose(HOST_LIMITED).predicted_iteration_ns == 200 * MS
    assert measured().choose(LINK_LIMITED).predicted_iteration_ns == 370 * MS


def test_nothing_changes_before_there_is_something_to_compare_with() -> None:
    order = ArrivalOrder(IterationTimes())
    measure(order, 0, 5, 180, 200)
    assert order.choose(HOST_LIMITED) == HOST_LIMITED
    order.issued(HOST_LIMITED, 10, WORKERS)
    assert order.verdict() is None
    measure(order, 5, AT, 180, 200)
    assert order.verdict() == "enough iterations are known to compare others with"
    assert order.verdict() is None
    assert order.choose(HOST_LIMITED).is_in_order


def test_without_knowledge_of_hosts_there_is_no_choice() -> None:
    unknown = Solution({}, [], [], MS, Link(None))
    assert ArrivalOrder(IterationTimes()).choose(unknown) == unknown


def test_going_back_needs_more_than_staying() -> None:
    borderline = solution(200, 206, 194)  # the plan saves 2.9%
    assert not measured().choose(borderline).is_in_order
    order = changed()
    assert order.choose(borderline).is_in_order
    assert order.choose(solution(160, 165, 120)).is_in_order  # 75% of what the links need
    assert not order.choose(LINK_LIMITED).is_in_order


def test_order_of_arrival_that_is_no_slower_stays() -> None:
    order = changed()
    measure(order, AT, MEASURED, 190, 201)
    assert order.verdict() is None
    assert order.choose(HOST_LIMITED).is_in_order


def test_order_of_arrival_that_was_slower_ends_until_links_are_the_limit() -> None:
    order = changed()
    measure(order, AT, MEASURED - 1, 190, 210)
    assert order.verdict() is None  # not enough is known
    measure(order, MEASURED - 1, MEASURED, 190, 210)
    assert order.verdict() == "iterations in order of arrival took 210.0 ms, 200.0 ms before"
    assert order.verdict() is None  # said once
    chosen = order.choose(HOST_LIMITED)
    # No plan had set an order before, so that of the plan is not known to be better.
    assert chosen.settings == {"in_order": 0, "plan_bandwidth_bps": 0}
    order.issued(chosen, MEASURED + 9, WORKERS)
    assert order.choose(HOST_LIMITED) == chosen
    assert order.choose(LINK_LIMITED).is_ordered
    assert order.choose(HOST_LIMITED).is_in_order


def test_a_plans_order_that_was_faster_returns() -> None:
    order = ArrivalOrder(IterationTimes())
    order.issued(order.choose(LINK_LIMITED), AT - 90, WORKERS)
    measure(order, AT - 60, AT, 180, 200)
    order.issued(order.choose(HOST_LIMITED), AT, WORKERS)
    measure(order, AT, MEASURED, 190, 210)
    assert order.verdict() is not None
    assert order.choose(HOST_LIMITED) == HOST_LIMITED


def test_iterations_in_which_partitions_change_do_not_count() -> None:
    order = changed()
    measure(order, AT, AT + SETTLING, 900, 900)
    measure(order, AT + SETTLING, MEASURED, 199, 200)
    assert order.verdict() is None
    assert order.choose(HOST_LIMITED).is_in_order


def test_who_has_not_reported_is_waited_for() -> None:
    order = changed()
    measure(order, AT, MEASURED, 300)
    assert order.verdict() is None
    measure(order, AT, MEASURED, 300, 300)
    assert order.verdict() is not None


def test_a_plan_that_is_issued_again_changes_later() -> None:
    order = changed()
    order.issued(order.choose(HOST_LIMITED), AT + 10, WORKERS)
    measure(order, AT, AT + 10, 180, 200)
    measure(order, AT + 10, MEASURED, 190, 210)
    assert order.verdict() is None
    measure(order, MEASURED, MEASURED + 10, 190, 210)
    assert order.verdict() is not None


def test_later_plans_in_order_of_arrival_are_not_compared_with_it() -> None:
    order = changed()
    measure(order, AT, MEASURED, 190, 200)
    assert order.verdict() is None
    order.issued(order.choose(HOST_LIMITED), MEASURED + 30, WORKERS)
    measure(order, MEASURED, MEASURED + 200, 300, 300)
    assert order.verdict() is None
