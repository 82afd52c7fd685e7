"""Ends a worker process whose script has failed.

At exit, BytePS shuts down and waits for all other workers. If this worker has failed, the others
never reach that point, because they wait for its gradients. So after an uncaught exception BytePS
is not shut down, and the process ends with status 1 once the exit handlers have run.

Exit handlers run in reverse order. ``leave_at_exit`` is therefore called when the front is
imported, before BytePS registers any handler, and ``skip_shutdown`` after BytePS has registered its
own.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from byteprophet.errors import UserError, one_line, tell


def has_failed() -> bool:
    """At exit: whether an uncaught exception ends the process.

    One started by multiprocessing calls its exit handlers while the exception passes.
    """
    passing = sys.exc_info()[1]
    if passing is not None and not isinstance(passing, SystemExit):
        return True
    return hasattr(sys, "last_type") and not hasattr(sys, "ps1")


def leave_at_exit() -> None:
    """End the process at once if it has failed when all later exit handlers have run."""
    atexit.register(_leave)


def skip_shutdown(*handlers: Callable[[], Any]) -> None:
    """At exit, have BytePS' own ``handlers`` not run if the process has failed."""
    atexit.register(_skip, *handlers)


def _skip(*handlers: Callable[[], Any]) -> None:
    if has_failed():
        for handler in handlers:
            atexit.unregister(handler)


def leave_now(status: int) -> NoReturn:
    """End the process at once: no exit handler runs, and no thread is waited for."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


@contextlib.contextmanager
def left_on_error() -> Iterator[None]:
    """End the process at a ``UserError``, with one line and status 2; the script never sees it."""
    try:
        yield
    except UserError as error:
        tell(f"error: {one_line(str(error))}")
        leave_now(2)


def _leave() -> None:
    if has_failed():
        leave_now(1)
