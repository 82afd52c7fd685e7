"""Limits the rate at which a mesh sends, for as long as something else needs the link.

TCP divides a link among connections. A mesh has one to every other rank, and may so take more of a
link than its share of the bytes. The kernel can keep a connection from sending faster than a rate
(SO_MAX_PACING_RATE, socket(7); without a queueing discipline of its own, TCP paces by a timer). The
limit is an option of the sockets, which a mesh owns and closes, so nothing of the mesh knows of it.

Threads: any thread may call ``limit``. The lock makes the last call the one that counts, and keeps
the sockets' numbers from being used after ``close``, when they may be others'. REQUIRES: ``close``
is called before the mesh closes its sockets.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Sequence

_SO_MAX_PACING_RATE = 47  # asm-generic/socket.h, which x86, ARM, POWER and RISC-V use
_RATE = struct.Struct("@L")
_UNLIMITED = (1 << 8 * _RATE.size) - 1


class Pace:
    """The limit of a mesh's ``sockets``: their numbers, by rank; -1 is this rank's own place."""

    def __init__(self, sockets: Sequence[int]) -> None:
        self._sockets = [number for number in sockets if number >= 0]
        self._lock = threading.Lock()

    def limit(self, rate_bps: int) -> None:
        """Let all sockets together send at ``rate_bps`` at most, each at its part; 0: no limit.

        Sockets that are not TCP's ignore it.
        """
        with self._lock:
            each = _UNLIMITED
            if rate_bps and self._sockets:
                each = max(1, rate_bps // 8 // len(self._sockets))
            for number in self._sockets:
                owned = socket.socket(socket.AF_INET, socket.SOCK_STREAM, fileno=number)
                try:
                    owned.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, _RATE.pack(each))
                finally:
                    owned.detach()  # the mesh closes it

    def close(self) -> None:
        """Forget the sockets."""
        with self._lock:
            self._sockets = []


NO_SOCKETS = Pace(())
"""Limits nothing."""
