"""Finishes or drops the outstanding work of all fronts, also of those that are gone.

At exit (``os._exit(0)`` included), at shutdown and at suspension, no transfer of ours may be in
flight, and no thread of ours may run. A process forked from a rank has none of our threads and
waits for nothing, so all updates are finished before the fork. Before a new optimizer takes names,
nothing of ours may hold a tensor that the script has dropped.

Threads: the training thread calls everything; at exit, that is the main thread. ``_before_fork``
runs in the thread that forks.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import weakref
from collections.abc import Iterable
from multiprocessing.util import Finalize
from typing import NoReturn

from byteprophet import _leaving
from byteprophet.errors import TimedOut
from byteprophet.torch import live_fronts
from byteprophet.torch.front import dropped, flush_points
from byteprophet.torch.front.front import Front
from byteprophet.torch.front.gradients import UNCLAIMED_S
from byteprophet.torch.front.updates import Updater
from byteprophet.torch.sync import leaving
from byteprophet.torch.sync.synchroniser import Synchroniser
from byteprophet.torch.tensors import ending_threads, garbage, pending

_updaters: weakref.WeakSet[Updater] = weakref.WeakSet()  # alive as long as their threads are
_synchronisers: weakref.WeakSet[Synchroniser] = weakref.WeakSet()
_JOIN_S = 5.0
_BEFORE_CHILDREN = 100  # exit priority: runs before multiprocessing ends its children


def register(front: Front) -> None:
    """Register a front. The first call installs the flush points and the exit handlers."""
    live_fronts.register(front)
    _updaters.add(front.updater)
    _synchronisers.add(front.synchroniser)
    _install()


def free_dropped(new: Synchroniser, timeout_s: float) -> None:
    """Free what only we hold of optimizers that the script has dropped.

    From then on, only the script keeps tensors alive (see ``tensors/naming.py``). ``new`` is not
    registered yet. Its threads may be those of synchronisers that are gone. Raises ``TimedOut`` if
    the gradient of an optimizer that is gone is in flight for ``timeout_s`` seconds.
    """
    live_fronts.finish_all()  # outstanding updates keep their optimizer alive
    _let_go(list(_updaters))
    _collect()  # now optimizers that are gone note what is in flight
    late = dropped.wait(timeout_s)
    if late is not None:
        raise TimedOut(
            f"byteprophet: waited {timeout_s:g} s for the gradients of an optimizer that is gone, "
            f"whose names another one takes: {late} (BYTEPROPHET_TIMEOUT_S sets the limit)"
        )
    _let_go([*_synchronisers, new])
    _collect()


def _let_go(holders: Iterable[Updater | Synchroniser]) -> None:
    """Wait until threads of ``holders`` hold no tensor of a finished call."""
    for holder in holders:
        holder.let_go(_JOIN_S)


def _collect() -> None:
    """Free what only garbage refers to, and threads that end because their owner was garbage."""
    garbage.collect(_JOIN_S)
    ending_threads.join_all(_JOIN_S)
    garbage.collect(_JOIN_S)


def stop_all() -> None:
    """Wait until nothing is in flight, then let the synchronisers release their threads."""
    for front in live_fronts.live_fronts():
        front.drain()
    dropped.wait(UNCLAIMED_S)
    for synchroniser in list(_synchronisers):
        synchroniser.close()
    leaving.leave_all()


@functools.cache
def _install() -> None:
    flush_points.install()
    # Processes started by multiprocessing exit without running atexit handlers, so the handler is
    # registered with both. Finalize calls it once, and only in this process.
    at_exit = Finalize(None, _at_exit, exitpriority=_BEFORE_CHILDREN)
    atexit.register(at_exit)
    leave = os._exit

    def leave_finished(status: int) -> NoReturn:
        """Leave a script that has done its work as it leaves others: with its gradients sent."""
        if status == 0:
            at_exit()
        leave(status)

    os._exit = leave_finished
    os.register_at_fork(before=_before_fork, after_in_child=_in_forked_child)


def _before_fork() -> None:
    """Finish all updates: the child may read parameters, as to save them."""
    with contextlib.suppress(RuntimeError):  # the training thread will raise it
        live_fronts.finish_all()


def _in_forked_child() -> None:
    """Drop everything outstanding: gradients that no ``step()`` has used."""
    for mark in list(pending.marks.values()):
        pending.unmark(mark.tensor)
    pending.lose_weak()
    for updater in _updaters:
        updater.forget()
    live_fronts.forget_all()
    dropped.forget()
    _updaters.clear()
    _synchronisers.clear()
    leaving.forget_all()


def _at_exit() -> None:
    """Runs before BytePS' own exit handler, which was registered earlier (by ``init``).

    It sends what other ranks still need. After an uncaught exception, it waits for no other rank,
    because the job has failed. It ends updaters in any case, and waits for all
    threads that end (``ending_threads.py``).
    """
    try:
        if not _leaving.has_failed():
            stop_all()
    except RuntimeError as error:
        print(error, file=sys.stderr)
    for updater in list(_updaters):
        updater.close()
    ending_threads.join_all(_JOIN_S)
