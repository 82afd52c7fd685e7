"""Garbage is collected completely, whatever other threads do."""

from __future__ import annotations

import gc
import threading
import weakref

from byteprophet.torch.tensors import garbage


class Node:
    """A cycle."""

    def __init__(self) -> None:
        self.itself = self


class Slow(Node):
    """A cycle whose end takes until ``goes_on`` is set."""

    def __init__(self, began: threading.Event, goes_on: threading.Event) -> None:
        super().__init__()
        self.began, self.goes_on = began, goes_on

    def __del__(self) -> None:
        self.began.set()
        self.goes_on.wait(20)


def collecting(goes_on: threading.Event) -> threading.Thread:
    """A thread that is collecting, and goes on when ``goes_on`` is set."""
    began = threading.Event()

    def collect() -> None:
        Slow(began, goes_on)
        gc.collect()

    thread = threading.Thread(target=collect)
    thread.start()
    assert began.wait(20)
    return thread


def test_a_collection_in_another_thread_is_waited_for() -> None:
    goes_on = threading.Event()
    gc.disable()
    try:
        other = collecting(goes_on)
        node = Node()
        gone = weakref.ref(node)
        del node
        assert gc.collect() == 0, "it does nothing while another thread collects"
        assert gone() is not None
        threading.Timer(0.1, goes_on.set).start()
        garbage.collect(20.0)
        assert gone() is None
        other.join(20)
    finally:
        goes_on.set()
        gc.enable()


def test_nobody_waits_longer_than_the_limit() -> None:
    goes_on = threading.Event()
    other = collecting(goes_on)
    garbage.collect(0.05)
    assert other.is_alive()
    goes_on.set()
    other.join(20)


def test_what_finalizers_let_go_of_is_collected_too() -> None:
    held = [Node()]
    gone = weakref.ref(held[0])
    first = Node()
    weakref.finalize(first, held.clear)
    gc.disable()
    try:
        del first
        garbage.collect(20.0)
        assert gone() is None
    finally:
        gc.enable()
