"""Threads that were told to end are waited for until they have let go of all that they hold."""

from __future__ import annotations

import threading
import time

from byteprophet.torch.sync.worker import Worker
from byteprophet.torch.tensors import ending_threads


class Owner:
    """What its thread frees in the end, slowly."""

    def __init__(self, freed: list[str]) -> None:
        self.told = threading.Event()
        self._freed = freed

    def run(self) -> None:
        self.told.wait(20)

    def __del__(self) -> None:
        time.sleep(0.2)
        self._freed.append("owner")


def test_a_thread_has_freed_its_owner_when_it_was_waited_for() -> None:
    freed: list[str] = []
    owner = Owner(freed)
    thread = threading.Thread(target=owner.run, daemon=True)
    thread.start()
    ending_threads.add(thread)
    owner.told.set()
    del owner, thread
    ending_threads.join_all(20)
    assert freed == ["owner"]


def test_a_worker_that_was_told_to_end_is_waited_for() -> None:
    worker = Worker("worker")
    began, done = threading.Event(), threading.Event()

    def task() -> None:
        began.set()
        time.sleep(0.2)
        done.set()

    worker.put(task)
    assert began.wait(20)
    worker.end()
    ending_threads.join_all(20)
    assert done.is_set()


def test_nobody_waits_longer_than_the_limit() -> None:
    stays = threading.Event()
    thread = threading.Thread(target=stays.wait, args=(20,), daemon=True)
    thread.start()
    ending_threads.add(thread)
    ending_threads.join_all(0.1)
    assert thread.is_alive()
    stays.set()
    ending_threads.join_all(20)
    assert not thread.is_alive()
