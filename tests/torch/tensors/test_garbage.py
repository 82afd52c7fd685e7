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


def test_a_collection_in_another_thread_is_waited_for() -> None:
    began, goes_on = threading.Event(), threading.Event()

    class Slow(Node):
        def __del__(self) -> None:
            began.set()
            goes_on.wait(20)

    def collect() -> None:
        Slow()
        gc.collect()

    gc.disable()
    try:
        other = threading.Thread(target=collect)
        other.start()
        assert began.wait(20)
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
    began, goes_on = threading.Event(), threading.Event()

    class Slow(Node):
        def __del__(self) -> None:
            began.set()
            goes_on.wait(20)

    def collect() -> None:
        Slow()
        gc.collect()

    other = threading.Thread(target=collect)
    other.start()
    assert began.wait(20)
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
