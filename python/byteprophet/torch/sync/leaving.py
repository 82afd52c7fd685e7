"""Lets transports register callbacks for when this process leaves the job.

The front calls them.
"""

from __future__ import annotations

from collections.abc import Callable

_at_stop: list[Callable[[], None]] = []


def at_stop(leave: Callable[[], None]) -> None:
    """Call ``leave`` once, after all synchronisers were closed, even if none exists any more."""
    _at_stop.append(leave)


def leave_all() -> None:
    """Call the registered callbacks, the latest first."""
    while _at_stop:
        _at_stop.pop()()


def forget_all() -> None:
    """Forget all callbacks, in a forked child, which has no connection to close."""
    _at_stop.clear()
