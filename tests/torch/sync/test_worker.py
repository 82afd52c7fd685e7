"""A thread of short tasks: their order, and how it ends."""

from __future__ import annotations

import threading

from byteprophet.torch.sync.worker import Worker


def test_tasks_run_in_order_and_are_let_go() -> None:
    worker, seen = Worker("test"), []
    for number in range(100):
        worker.put(lambda number=number: seen.append(number))  # type: ignore[misc]
    worker.let_go(10)
    assert seen == list(range(100))
    worker.end()
    worker.join(10)


def test_tasks_of_tasks_run_before_the_end_and_later_ones_at_once() -> None:
    worker, seen = Worker("test"), []

    def first() -> None:
        worker.end()
        worker.put(lambda: seen.append(threading.current_thread().name))

    worker.put(first)
    worker.join(10)
    assert seen == ["test"]
    worker.put(lambda: seen.append("here"))
    assert seen == ["test", "here"]
