"""Ends a forked program at once, after all that others see of an interpreter's end.

An interpreter ends by freeing every object. In a fork, most of them are the server's: freeing what
torch has made takes 0.3 s, for the most part to copy pages that are still shared with the server.
The system frees all of it in a few milliseconds when the process ends.

Order. ``fork_server_main.py`` registers ``end`` with atexit before the server imports anything, so
it is the last handler. By then, the interpreter has done the following itself, as always:

1. The program has ended, or ``sys.exit`` has. What it said is on standard error.
2. All threads have ended that are not daemons.
3. All other handlers have run, the last registered one first: those of the program, of our sessions
   (``torch/lifecycle.py``, which save what was recorded), of BytePS (which leaves the job and
   removes its shared memory), multiprocessing (which ends children) and logging.

``end`` then does what remains for the program itself. It flushes all open files, then frees
``__main__``, so that ``__del__`` of the program's objects runs. It flushes what these have written,
the standard streams and those of C, and ends the process.

What does not happen: ``__del__`` of objects that only other modules refer to, which Python does not
promise either; destructors of C++ objects that live as long as the process, and functions
registered with C's ``atexit``; finalizers of the libraries of operators that torch has made in the
server (``forking.py``). Nothing in BytePS, torch or the plug-in writes, sends or removes
anything there. A process group of torch.distributed that the program has left open waits for
operations in flight when it is freed, but an interpreter does not free it either.

The interpreter ends as always if an exception has ended the program, if a standard stream cannot be
flushed (it then says so, with status 120), and if ``end`` may not be the last handler. Daemon
threads run until the process ends, as always.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import os
import sys

_HIGHEST_STATUS = 255
_BUFFERED = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)

_status: int | None = None  # of the program that has ended; None: the interpreter knows it


def note_exit(code: object) -> None:
    """Notes that the program has ended with ``sys.exit(code)``. None: it has ended by itself."""
    global _status
    if code is None:
        _status = 0
    elif not isinstance(code, int):
        _status = 1  # the interpreter prints ``code`` before it calls the handlers
    elif 0 <= code <= _HIGHEST_STATUS:
        _status = code


def end() -> None:
    """Ends this process. Returns if the interpreter must end it."""
    if _status is None or not _flushed():
        return
    _flush_files()  # the collector may close a file before what is buffered for it is written
    sys.modules.pop("__main__", None)
    gc.collect()
    _flush_files()
    if _flushed():
        ctypes.CDLL(None).fflush(None)
        os._exit(_status)


def _flushed() -> bool:
    """Whether all that was written to the standard streams has left this process."""
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
    except Exception:  # noqa: BLE001 - whatever it is, the interpreter reports it
        return False
    return True


def _flush_files() -> None:
    for item in gc.get_objects():  # but for those of the server, which are frozen
        if issubclass(type(item), _BUFFERED):
            with contextlib.suppress(Exception):  # closed, detached, or its disk is full
                item.flush()
