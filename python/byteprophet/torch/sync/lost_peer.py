"""Reports roles that BytePS' library considers lost, because their heartbeats stopped.

Our build of BytePS has heartbeats, with and without a policy. Other builds never report a loss.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from byteps.torch import c_lib

_FOR_GOOD_MS = 2**31 - 1


def when_lost() -> Callable[[], str | None] | None:
    """Return a function that waits, without the GIL, until another role is lost.

    The function returns BytePS' message about the loss. It may also return None without a loss;
    call it again then. Returns None instead of a function if this build of BytePS has no
    heartbeats. BytePS ends this process within seconds after a loss.
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
