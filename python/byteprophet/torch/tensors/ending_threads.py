"""Threads of ours that were told to end, and hold tensors until they have.

An optimizer that a script drops, for example as it ends, tells its thread to end. That thread may
be the last one that refers to the optimizer's tensors, and then frees them. torch gives away the
interpreter's lock for that, and an interpreter that ends kills every thread that asks for the lock.
A thread that is killed within C++ code aborts the process. So at exit, the main thread waits for
these threads. It must know the threads themselves, because nobody may know their owners any more.
For the same reason, the training thread waits for them before a new optimizer takes names: whether
a name is free depends on whether its tensor still exists.

Threads: any thread adds one. The training thread waits, without a lock.
"""

from __future__ import annotations

import threading
import time
import weakref

_told: weakref.WeakSet[threading.Thread] = weakref.WeakSet()  # one that runs is alive


def add(thread: threading.Thread | None) -> None:
    """Wait for ``thread`` in ``join_all``: it was told to end."""
    if thread is not None:
        _told.add(thread)


def join_all(timeout_s: float) -> None:
    """Wait until all have ended, at most ``timeout_s`` seconds."""
    deadline_s = time.monotonic() + timeout_s
    for thread in list(_told):
        thread.join(max(0.0, deadline_s - time.monotonic()))
