"""Waits for BytePS' outstanding push_pull operations before the job is suspended.

BytePS' own ``suspend`` calls this (patch 0024), so nothing is lost, with a policy or without. When
BytePS stops, it drops operations in flight, and a worker that waits for one would wait forever.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from byteprophet.runtime_settings import timeout_of

_INTERVAL_S = 0.001


def wait_for_all(handles: Mapping[int, object], is_done: Callable[[int], bool]) -> None:
    """Wait until every one of ``handles`` is done, or gone because another thread cleared it.

    ``RuntimeError`` after ``BYTEPROPHET_TIMEOUT_S``; ``UserError`` where that is no number.
    """
    limit_s = timeout_of(os.environ)
    deadline_s = time.monotonic() + limit_s
    for handle in list(handles):
        while handle in handles and not _is_done(handle, is_done):
            if time.monotonic() > deadline_s:
                raise RuntimeError(
                    f"byteprophet: suspend: waited {limit_s:g} s for push_pull operations that "
                    "other workers have not begun (BYTEPROPHET_TIMEOUT_S sets the limit)"
                )
            time.sleep(_INTERVAL_S)


def _is_done(handle: int, is_done: Callable[[int], bool]) -> bool:
    try:
        return is_done(handle)
    except ValueError:  # cleared meanwhile
        return True
