"""Paces the mesh of a job with two transports while something is on its way to servers.

A strategy plans how much of the link either transport gets. TCP divides the link by connections
instead (``strategy/mixed.py``). So while any gradient is with the servers, from when it is handed
over until its average is there, the mesh sends no faster than planned, and the servers' messages
find the rest of the link free. At all other times the mesh has all of it.

Threads: gradients are submitted in training and autograd threads, and averages arrive in others.
The lock guards the count, and is held while the limit is changed, so that the limit is that of the
last change of the count. It is not held during ``done``. Changing it takes microseconds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from byteprophet.torch.sync.completion import Done


class Pacing:
    """``limit`` sets the rate of the mesh in bits per second, 0 for none; here to ``mesh_bps``."""

    def __init__(self, limit: Callable[[int], None], mesh_bps: int) -> None:
        self._limit = limit
        self._mesh_bps = mesh_bps
        self._lock = threading.Lock()
        self._with_servers = 0

    def during(self, done: Done) -> Done:
        """Pace the mesh until the returned function is called, which then calls ``done``."""
        self._change(1)

        def ended(error: BaseException | None) -> None:
            self._change(-1)
            done(error)

        return ended

    def _change(self, by: int) -> None:
        with self._lock:
            was = self._with_servers
            self._with_servers += by
            if (was == 0) != (self._with_servers == 0):
                self._limit(self._mesh_bps if self._with_servers else 0)
