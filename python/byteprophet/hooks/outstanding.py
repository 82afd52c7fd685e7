"""Waiting for BytePS' outstanding push_pull operations, before the job is suspended.

Called by BytePS' own ``suspend`` (patch 0024), so that nothing is lost with or without us: what is
under way when BytePS stops is dropped, and a worker that waits for it waits for ever.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

_INTERVAL_S = 0.001


def wait_for_all(handles: Mapping[int, object], is_done: Callable[[int], bool]) -> None:
    """Wait until every one of ``handles`` is done, or gone because another thread cleared it.

    ``RuntimeError`` after ``BYTEPROPHET_TIMEOUT_S``.
    """
    given_s = float(os.environ.get("BYTEPROPHET_TIMEOUT_S") or 0)
    limit_s = given_s if given_s > 0 else 1800.0  # as in hooks/suspension.h
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
