"""Waits for BytePS' outstanding push_pull operations before this worker leaves the job.

BytePS' own calls do so (patches 0024 and 0055), so nothing is lost, with a policy or without. When
BytePS stops, it drops operations in flight, and other workers would wait for this one's part.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Callable, Mapping

from byteprophet._leaving import has_failed
from byteprophet.runtime_settings import timeout_of

_INTERVAL_S = 0.001


def finish_at_exit(handles: Mapping[int, object], is_done: Callable[[int], bool]) -> None:
    """Wait for all when the script ends, unless it has failed: then others wait in vain.

    Raises ``UserError`` if ``BYTEPROPHET_TIMEOUT_S`` is no number.
    """
    timeout_of(os.environ)  # it would be too late at the end
    atexit.register(_finish, handles, is_done)


def _finish(handles: Mapping[int, object], is_done: Callable[[int], bool]) -> None:
    if has_failed():
        return
    try:
        wait_for_all("end", handles, is_done)
    except RuntimeError as error:
        print(error, file=sys.stderr)


def wait_for_all(
    before: str, handles: Mapping[int, object], is_done: Callable[[int], bool]
) -> None:
    """Wait until every one of ``handles`` is done, or gone because another thread cleared it.

    ``before``: what this worker does next. ``RuntimeError`` after ``BYTEPROPHET_TIMEOUT_S``;
    ``UserError`` where that is no number.
    """
    limit_s = timeout_of(os.environ)
    deadline_s = time.monotonic() + limit_s
    for handle in list(handles):
        while handle in handles and not _is_done(handle, is_done):
            if time.monotonic() > deadline_s:
                raise RuntimeError(
                    f"byteprophet: {before}: waited {limit_s:g} s for push_pull operations that "
                    "other workers have not begun (BYTEPROPHET_TIMEOUT_S sets the limit)"
                )
            time.sleep(_INTERVAL_S)


def _is_done(handle: int, is_done: Callable[[int], bool]) -> bool:
    try:
        return is_done(handle)
    except ValueError:  # cleared meanwhile
        return True
