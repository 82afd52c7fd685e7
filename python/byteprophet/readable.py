"""Waits until files can be read, whatever their numbers are.

``select.select`` fails for numbers of 1,024 and more, which a process that trains may well have.
"""

from __future__ import annotations

import select
from collections.abc import Iterable


def readable(descriptors: Iterable[int], timeout_s: float | None = None) -> list[int]:
    """The ones of ``descriptors`` that can be read, or have ended, once there are any.

    Empty after ``timeout_s``; None: no limit.
    """
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    timeout_ms = None if timeout_s is None else max(0.0, 1e3 * timeout_s)
    return [descriptor for descriptor, _ in poll.poll(timeout_ms)]
