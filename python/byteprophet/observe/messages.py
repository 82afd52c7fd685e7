"""Saves ps-lite's messages as they come: ``events/messages-<role>.arrows``, of workers and servers.

A consumer of a worker's observer, every 0.25 s, and of a server's recording thread (``server.py``).
Messages do not say their iteration: with windows, a worker keeps what was sent and received from
some iterations before a window begins (``recording.py``) to up to 0.25 s after the one behind it.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path

from byteprophet.timeline.events import EventWriter, Origin, new_path
from byteprophet.timeline.native_rows import take_all
from byteprophet.timeline.tables import MESSAGE, MESSAGES, Rows, Transfers


class MessageSource:
    """The recorder in a library of BytePS, or in one that is linked against it."""

    def __init__(self, library: ctypes.CDLL) -> None:
        library.byteps_take_messages.argtypes = [ctypes.c_void_p, ctypes.c_int]
        library.byteps_lost_messages.restype = ctypes.c_uint64
        self._library = library

    def record(self, on: bool) -> None:
        """Record from now on, or not."""
        self._library.byteps_record_messages(int(on))

    def take(self) -> Rows:
        """The messages since the last call."""
        return take_all(self._library.byteps_take_messages, MESSAGE)

    def lost(self) -> int:
        """Messages that were recorded and lost so far."""
        return int(self._library.byteps_lost_messages())


def loaded_source(framework: str = "torch") -> MessageSource | None:
    """Of the BytePS that this process has loaded; None where that is another build than ours."""
    extension = sys.modules.get(f"byteps.{framework}.c_lib")
    if extension is None:
        return None
    library = ctypes.CDLL(extension.__file__)
    return MessageSource(library) if hasattr(library, "byteps_record_messages") else None


class MessageConsumer:
    """Writes what ``source`` records while it is ``wanted``, which is asked at each ``take``.

    ``lost_before``: of a source that records already, what it had lost when it began; all that is
    in it is written. Without, it is off, and what is in it is of an earlier life of the process.
    """

    every = 0  # transfers are not needed

    def __init__(
        self,
        run_directory: Path,
        role: str,
        rank: int,
        source: MessageSource,
        wanted: Callable[[], bool],
        lost_before: int | None = None,
    ) -> None:
        path = new_path(run_directory, MESSAGES, role)
        self._writer = EventWriter(path, MESSAGES, Origin(role, rank))
        self._source = source
        self._wanted = wanted
        if lost_before is None:
            source.take()  # ZeroMQ may have ended rows after the earlier life's ``close``
            lost_before = source.lost()
        self._lost = lost_before
        self._on = wanted()
        source.record(self._on)

    def take(self, _transfers: Transfers | None = None) -> None:
        """Write the messages since the last call."""
        self._write()
        if self._wanted() != self._on:
            self._on = not self._on
            self._source.record(self._on)

    def close(self) -> None:
        """Write what is left and complete the file."""
        self.abandon()
        self._write()
        self._writer.close()

    def abandon(self) -> None:
        """Record no more."""
        self._source.record(False)

    def _write(self) -> None:
        rows = self._source.take()
        if len(rows):
            lost = self._source.lost()
            self._writer.write(rows, {}, lost - self._lost)
            self._lost = lost
