"""What BytePS' library knows of the loss of another role: its heartbeats say so.

They are part of our build of BytePS, with and without a policy. A library of another build does not
know of such losses; nothing is ever heard of one then.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from byteps.torch import c_lib

_FOR_GOOD_MS = 2**31 - 1


def when_lost() -> Callable[[], str | None] | None:
    """A function that waits, without the GIL, until another role is lost and returns the line.

    It may return ``None`` in between. ``None`` instead of a function: this BytePS does not know.
    Once a role is lost, BytePS ends this process within seconds.
    """
    library = ctypes.CDLL(c_lib.__file__)
    try:
        wait = library.byteps_lost_peer
    except AttributeError:
        return None
    wait.argtypes = [ctypes.c_int]
    wait.restype = ctypes.c_char_p

    def line() -> str | None:
        text: bytes | None = wait(_FOR_GOOD_MS)
        return None if text is None else text.decode(errors="replace")

    return line
