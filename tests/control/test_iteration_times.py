"""What is known of how long iterations take."""

from __future__ import annotations

from byteprophet.control.iteration_times import IterationTimes

BOTH = {"worker-0", "worker-1"}


def test_the_usual_time_is_that_of_the_iterations_reported_last() -> None:
    times = IterationTimes()
    assert times.usual_ns() is None
    times.add("worker-0", [(n, 900) for n in range(100)])
    times.add("worker-0", [(n, 100) for n in range(100, 120)])
    times.add("worker-1", [(n, 300) for n in range(100, 120)])
    assert times.usual_ns() == 200
    times.add("worker-0", [(n, 500) for n in range(20)])  # a resumed job may count anew
    assert times.usual_ns() == 500


def test_the_slowest_worker_counts_once_all_have_reported() -> None:
    times = IterationTimes()
    times.add("worker-0", [(1, 10), (2, 20), (3, 30), (4, 40)])
    times.add("worker-1", [(1, 90), (2, 11), (3, 31)])
    assert times.slowest_ns(2, 5, BOTH) == [20, 31]
    assert times.slowest_ns(2, 5, {"worker-0"}) == [40, 20, 31]
    assert times.slowest_ns(1, 2, {*BOTH, "worker-2"}) == []


def test_memory_is_bounded_and_late_reports_count() -> None:
    times = IterationTimes()
    for n in range(10_000):
        times.add("worker-0", [(n, 100)])
    assert len(times) < 1000
    times.add("worker-1", [(9_990, 200)])
    assert times.slowest_ns(0, 10_000, BOTH) == [200]
