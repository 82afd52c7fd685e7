"""Saves the ps-lite messages of workers and servers to ``events/messages-<role>.arrows``.

The code runs every 0.25 s, as a consumer of a worker's observer or in a server's recording thread
(``server.py``). Messages do not contain their iteration. With windows, a worker therefore keeps
messages from some iterations before a window begins (``recording.py``) until up to 0.25 s after it
ends.
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
    """The message recorder in ``library``, which is BytePS' library or is linked against it."""

    def __init__(self, library: ctypes.CDLL) -> None:
        library.byteps_take_messages.argtypes = [ctypes.c_void_p, ctypes.c_int]
        library.byteps_lost_messages.restype = ctypes.c_uint64
        self._library = library

    def record(self, on: bool) -> None:
        """Switches recording on or off."""
        self._library.byteps_record_messages(int(on))

    def take(self) -> Rows:
        """Returns the messages recorded since the last call."""
        return take_all(self._library.byteps_take_messages, MESSAGE)

    def lost(self) -> int:
        """The number of messages that were recorded and lost so far."""
        return int(self._library.byteps_lost_messages())


def loaded_source(framework: str = "torch") -> MessageSource | None:
    """The recorder of the BytePS that this process has loaded; None if it has none of our build."""
    extension = sys.modules.get(f"byteps.{framework}.c_lib")
    if extension is None:
        return None
    library = ctypes.CDLL(extension.__file__)
    return MessageSource(library) if hasattr(library, "byteps_record_messages") else None


class MessageConsumer:
    """Writes what ``source`` records. ``wanted`` is called at each ``take`` to switch it on or off.

    ``lost_before`` is given for a source that is already recording: the number of messages it had
    lost when it began. All messages in it are then written. Without ``lost_before``, the source is
    off; messages still in it belong to an earlier life of the process and are dropped.
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
        """Writes the messages recorded since the last call."""
        self._write()
        if self._wanted() != self._on:
            self._on = not self._on
            self._source.record(self._on)

    def close(self) -> None:
        """Stops recording, writes the remaining messages and completes the file."""
        self.abandon()
        self._write()
        self._writer.close()

    def abandon(self) -> None:
        """Stops recording."""
        self._source.record(False)

    def _write(self) -> None:
        rows = self._source.take()
        if len(rows):
            lost = self._source.lost()
            self._writer.write(rows, {}, lost - self._lost)
            self._lost = lost
