"""Threads that were told to end are waited for until they have let go of all that they hold."""

from __future__ import annotations

import functools
import threading
import time

import torch
from torch import nn

from byteprophet.torch.front import stopping
from byteprophet.torch.sync.alone import Alone
from byteprophet.torch.sync.worker import Worker
from byteprophet.torch.tensors import ending_threads
from byteprophet.torch.tensors.naming import Names, name_parameters


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


def test_a_name_is_free_when_the_thread_that_frees_its_tensor_has_ended() -> None:
    """Otherwise, ranks on which that takes long would give the next tensor another name."""
    taken: Names = {}
    first = nn.Parameter(torch.zeros(4))
    name_parameters([first], [("weight", first)], None, taken)

    def run(held: list[nn.Parameter], told: threading.Event) -> None:
        told.wait(20)
        time.sleep(0.2)
        held.clear()

    class Garbage:
        """Like an optimizer: a cycle, at whose end its thread is told to end."""

        def __init__(self, held: list[nn.Parameter]) -> None:
            self.itself = self
            self.told = threading.Event()
            self.thread = threading.Thread(target=run, args=(held, self.told), daemon=True)
            self.thread.start()

        def __del__(self) -> None:
            self.told.set()
            ending_threads.add(self.thread)

    Garbage([first])
    del first
    second = nn.Parameter(torch.zeros(4))
    free = functools.partial(stopping.free_dropped, Alone(), 20)
    ((name, _),) = name_parameters([second], [("weight", second)], None, taken, free=free)
    assert name == "weight"


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
