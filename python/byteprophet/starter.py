"""Ends this process when the process that started it has ended, however that was."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with_starter(signum: int = signal.SIGTERM) -> None:
    """Has the kernel send ``signum`` to this process when the one that started it ends.

    The kernel looks at the thread that has started it, which must therefore last.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    parent = os.getppid()
    if libc.prctl(_PR_SET_PDEATHSIG, signum, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl: PR_SET_PDEATHSIG")
    if os.getppid() != parent:  # it has ended meanwhile
        os.kill(os.getpid(), signum)
