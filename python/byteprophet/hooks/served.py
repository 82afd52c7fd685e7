"""Records what a server serves, if its environment asks for it.

BytePS' server calls this (patch 0039). This module has only the code that every server and the
scheduler role must load; the recorder itself is imported on demand.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def recorded(library: ctypes.CDLL) -> Iterator[None]:
    """Record what ``library`` (of BytePS' server) serves until the end of the block.

    SIGTERM is blocked meanwhile, in threads that start there, too: the main thread is in BytePS and
    runs no Python handler. The recording thread waits for it, saves, and lets it do what it does.
    It is blocked before anything is imported, as numpy starts threads. Exits with status 2 for a
    wrong variable.
    """
    if os.environ.get("DMLC_ROLE") != "server" or os.environ.get("BYTEPROPHET_RECORD", "0") == "0":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        from byteprophet.observe.server import start

        recording = start(library)
        try:
            yield
        finally:
            recording.close()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
