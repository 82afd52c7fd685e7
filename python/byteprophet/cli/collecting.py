"""Python's search for garbage in cycles, put off where there is none to find."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collecting() -> Iterator[None]:
    """Search for no cycles meanwhile.

    Where many objects are made and stay, as by imports, the search visits all of them again and
    again: a tenth of a short command's time.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
