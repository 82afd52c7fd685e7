"""Runs a function over many items on all cores, in processes that end with this one.

However this process ends, none of them stays: the kernel kills them with it, and an exception, as a
signal raises one, kills them at once. ``concurrent.futures`` would first finish what runs.

A signal in the middle of a start would leave a process that waits for what it is told, and that
shows a traceback in the end. So signals that come while processes start are handled afterwards.
Ctrl-C reaches the whole group of processes; only this one answers to it.

Threads: none. Signals are deferred in the main thread only, because Python handles them nowhere
else.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, TypeVar

from byteprophet.errors import JobFailed
from byteprophet.starter import die_with_starter

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_processes(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    *,
    processes: int,
    together: int,
    begin: Callable[[], None],
) -> Iterator[Result]:
    """The results, in the order in which they are ready.

    Args:
        function: is called with each item, in any process.
        items: what it is called with.
        processes: how many there are.
        together: how many items a process gets at a time.
        begin: is called first in each process.

    Raises:
        JobFailed: a process ended, e.g. because Linux has killed it for its memory.
    """
    left = iter([items[at : at + together] for at in range(0, len(items), together)])
    process_of: dict[Any, SpawnProcess] = {}
    try:
        with _signals_deferred():
            for _ in range(processes):
                ours, process = _started(function, begin)
                process_of[ours] = process
        busy = [ours for ours, process in process_of.items() if _sent(ours, process, left)]
        while busy:
            for ours in wait(busy):
                results = _received(ours, process_of[ours])
                if not _sent(ours, process_of[ours], left):
                    busy.remove(ours)
                yield from results
    finally:
        for process in process_of.values():
            process.kill()
        for process in process_of.values():
            process.join()


def _started(
    function: Callable[[Item], Result], begin: Callable[[], None]
) -> tuple[Any, SpawnProcess]:
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, function, begin), daemon=True)
    process.start()
    theirs.close()
    return ours, process


def _sent(ours: Any, process: SpawnProcess, left: Iterator[Sequence[Item]]) -> bool:
    """Whether there was something to send."""
    items = next(left, None)
    if items is not None:
        with _end_is_told(process):
            ours.send(items)
    return items is not None


def _received(ours: Any, process: SpawnProcess) -> Any:
    with _end_is_told(process):
        return ours.recv()


@contextmanager
def _end_is_told(process: SpawnProcess) -> Iterator[None]:
    """Raises ``JobFailed`` if ``process`` has ended. If it left items unread, the pipe is reset."""
    try:
        yield
    except (EOFError, BrokenPipeError, ConnectionResetError):
        process.join()
        raise JobFailed(
            f"a process of the search has ended with status {process.exitcode}; one that was "
            "killed may have lacked memory"
        ) from None


def _serve(
    theirs: Connection, function: Callable[[Item], Result], begin: Callable[[], None]
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_starter(signal.SIGKILL)
    begin()
    with suppress(EOFError, BrokenPipeError):  # the process that searches has ended
        while True:
            theirs.send([function(item) for item in theirs.recv()])


@contextmanager
def _signals_deferred() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {
        each: signal.signal(each, lambda signum, _frame: came.append(signum))
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if callable(signal.getsignal(each))
    }
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        for signum in came:
            signal.raise_signal(signum)
