"""BYTEPROPHET_RECORD=1 in a server: saves what it served, and its messages, in ``events/``.

Threads. The main thread is in BytePS' server from ``start`` to ``close``. A thread of ours takes
what the server has recorded and writes it, every ``PERIOD_S``; everything here is its own but
``_ending``. It sleeps by waiting for SIGTERM, which is blocked in all threads (hooks/served.py): so
what was served is saved after one, too. A server that is killed loses the last period's rows.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from byteprophet.errors import UserError
from byteprophet.observe import recording
from byteprophet.observe.messages import MessageConsumer, MessageSource
from byteprophet.observe.observer import PERIOD_S
from byteprophet.timeline.events import EventWriter, Origin, new_path
from byteprophet.timeline.native_rows import take_all
from byteprophet.timeline.tables import SERVED, SERVED_TABLE

_CLOSE_S = 5.0


class ServedRecording:
    """Writes what ``library`` records from ``start`` to ``close``.

    Files are there once the server has joined the job and so knows its rank; after a suspension
    they are others.
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
        """Record, and begin to write."""
        self._source.take()  # what ZeroMQ ended after an earlier life's ``close``
        self._lost = self._library.byteps_lost_served()
        self._lost_messages = self._source.lost()
        self._library.byteps_record_served(1)
        self._source.record(True)
        self._thread.start()

    def close(self) -> None:
        """Write what is left and complete the file; a disk that hangs does not hold the job up."""
        self._ending.set()
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        terminated = False
        while not terminated and not self._ending.is_set():
            terminated = signal.sigtimedwait({signal.SIGTERM}, PERIOD_S) is not None
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
        """After an error nothing is recorded any more, and the job goes on."""
        if self._failed:
            return
        try:
            step()
        except Exception as error:  # noqa: BLE001 (whatever it is)
            self._failed = True
            self._library.byteps_record_served(0)
            self._source.record(False)
            print(
                "byteprophet: warning: this server stopped recording: "
                f"{type(error).__name__}: {error}",
                file=sys.stderr,
            )


def start(library: ctypes.CDLL, environment: Mapping[str, str] = os.environ) -> ServedRecording:
    """Record what ``library`` serves. Exits with status 2 for a wrong variable."""
    try:
        recording.check(environment)
        run_directory = recording.directory(environment)
    except UserError as error:
        print(f"byteprophet: error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    recorder = ServedRecording(library, run_directory, environment.get("BYTEPROPHET_ROLE"))
    recorder.start()
    return recorder
