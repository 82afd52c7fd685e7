"""Turns SIGINT, SIGTERM and SIGHUP into a request that the supervisor's loop finds.

Python runs a handler between two steps of the main thread, so a handler that raises may interrupt a
launch halfway. The first signal is therefore only noted, and a byte in a pipe wakes the loop. A
second signal raises at once, because the user probably waits for something that hangs, such as a
terminal that does not accept the job's output.

Outside the main thread, no handlers can be set. Signals then cannot interrupt the job.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, final

from byteprophet.errors import EndedBySignal

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@final
class Signals:
    """A context manager that sets the handlers. ``wake_fd`` is readable after a signal."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.wake_fd, self._write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._before: dict[int, Any] = {}
        self._wakeup_before = -1

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self.received is not None:
            raise KeyboardInterrupt if signum == signal.SIGINT else EndedBySignal(signum)
        self.received = signum

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            self._wakeup_before = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
            for signum in _SIGNALS:
                # An ignored signal stays ignored. nohup relies on that to keep a job alive.
                if signal.getsignal(signum) not in (signal.SIG_IGN, None):
                    self._before[signum] = signal.signal(signum, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)
        if threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(self._wakeup_before)
        os.close(self.wake_fd)
        os.close(self._write_fd)
