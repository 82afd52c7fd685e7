"""Collects garbage completely, whatever other threads do.

``gc.collect()`` returns at once, and has done nothing, while another thread collects. That thread
may have given away the interpreter's lock, as torch does to free a tensor. And what finalizers let
go of is found only by the next collection.

Threads: any thread may call ``collect``.
"""

from __future__ import annotations

import gc
import threading
import time

_PASSES = 5
_LOOK_AGAIN_S = 0.001


def collect(timeout_s: float) -> None:
    """Collect until a collection finds nothing.

    Waits at most ``timeout_s`` seconds for a collection in another thread.
    """
    own, deadline_s = threading.get_ident(), time.monotonic() + timeout_s
    began = 0

    def count(phase: str, _info: object) -> None:
        nonlocal began
        began += phase == "start" and threading.get_ident() == own

    gc.callbacks.append(count)
    try:
        for _ in range(_PASSES):
            before = began
            found = gc.collect()
            while began == before and time.monotonic() < deadline_s:
                time.sleep(_LOOK_AGAIN_S)
                found = gc.collect()
            if not found:
                return
    finally:
        gc.callbacks.remove(count)
