"""With BYTEPROPHET_RECORD=1, saves the pushes that a server served, and its messages.

Threads. The main thread is in BytePS' server from ``start`` to ``close``. Our thread takes the
server's recordings and writes them to ``events/`` every ``PERIOD_S``. It owns everything here
except ``_ending``. It sleeps by waiting for SIGTERM, which is blocked in all threads
(hooks/served.py), so recordings are saved after that signal, too. A server that is killed loses the
rows of the last period.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from byteprophet.errors import UserError, described, one_line, warn
from byteprophet.observe import recording
from byteprophet.observe.messages import MessageConsumer, MessageSource
from byteprophet.observe.observer import PERIOD_S
from byteprophet.timeline.events import EventWriter, Origin, new_path
from byteprophet.timeline.native_rows import take_all
from byteprophet.timeline.tables import SERVED, SERVED_TABLE

_CLOSE_S = 5.0


class ServedRecording:
    """Writes what ``library`` records from ``start`` to ``close``.

    The files are created once the server has joined the job and knows its rank. After a
    suspension, new files are created.
    """

    def __init__(self, library: ctypes.CDLL, run_directory: Path, role: str | None) -> None:
        library.byteps_take_served.argtypes = [ctypes.c_void_p, ctypes.c_int]
        library.byteps_lost_served.restype = ctypes.c_uint64
        self._library = library
        self._run_directory = run_directory
        self._role = role
        self._writer: EventWriter | None = None
        self._source = MessageSource(library)
        self._messages: MessageConsumer | None = None
        self._lost = 0
        self._lost_messages = 0
        self._failed = False
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="byteprophet-served", daemon=True)

    def start(self) -> None:
        """Starts recording and writing."""
        self._source.take()  # drops rows that ZeroMQ ended after an earlier life's ``close``
        self._lost = self._library.byteps_lost_served()
        self._lost_messages = self._source.lost()
        self._library.byteps_record_served(1)
        self._source.record(True)
        self._thread.start()

    def close(self) -> None:
        """Writes the remaining rows and completes the files.

        Waits for a few seconds only, so that a hanging disk does not delay the job.
        """
        self._ending.set()
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        terminated = False
        while not terminated and not self._ending.is_set():
            terminated = _terminated_within(PERIOD_S)
            self._call(self._write)
        self._call(self._complete)
        if terminated:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            os.kill(os.getpid(), signal.SIGTERM)

    def _write(self) -> None:
        rank = self._library.byteps_server_rank()
        if rank < 0:
            return
        if self._writer is None:
            role = self._role or f"server-{rank}"
            path = new_path(self._run_directory, SERVED_TABLE, role)
            self._writer = EventWriter(path, SERVED_TABLE, Origin(role, rank))
            self._messages = MessageConsumer(
                self._run_directory,
                role,
                rank,
                self._source,
                lambda: True,
                lost_before=self._lost_messages,
            )
        rows = take_all(self._library.byteps_take_served, SERVED)
        if len(rows):
            lost = self._library.byteps_lost_served()
            self._writer.write(rows, {}, lost - self._lost)
            self._lost = lost
        if self._messages is not None:
            self._messages.take()

    def _complete(self) -> None:
        self._write()
        if self._writer is not None:
            self._writer.close()
        if self._messages is not None:
            self._messages.close()

    def _call(self, step: Callable[[], None]) -> None:
        """Calls ``step``. After an error nothing is recorded any more, and the job goes on."""
        if self._failed:
            return
        try:
            step()
        except Exception as error:  # noqa: BLE001 (whatever it is)
            self._failed = True
            self._library.byteps_record_served(0)
            self._source.record(False)
            warn(f"this server stopped recording: {described(error)}")


def _terminated_within(seconds: float) -> bool:
    """Waits for SIGTERM. Returns whether it came."""
    got = signal.sigtimedwait({signal.SIGTERM}, seconds)
    # If this process was stopped meanwhile (Ctrl-Z, a debugger) and goes on after the time is over,
    # CPython returns what is in a buffer that nothing was written to.
    return got is not None and got.si_signo == signal.SIGTERM


def start(library: ctypes.CDLL, environment: Mapping[str, str] = os.environ) -> ServedRecording:
    """Starts recording what ``library`` serves. Exits with status 2 if a variable is invalid."""
    try:
        recording.check(environment)
        run_directory = recording.directory(environment)
        role = recording.role_in(environment)
    except UserError as error:
        print(f"byteprophet: error: {one_line(str(error))}", file=sys.stderr)
        raise SystemExit(2) from None
    recorder = ServedRecording(library, run_directory, role)
    recorder.start()
    return recorder
