"""Turns signals into requests that the supervisor's loop finds.

Python runs a handler between two steps of the main thread, so a handler that raises may interrupt a
launch halfway. A signal is therefore only noted, and a byte in a pipe wakes the loop.

SIGINT, SIGTERM and SIGHUP end the job. A SIGINT after one of them raises at once, because the user
probably waits for something that hangs, such as a file system that does not answer. Another SIGTERM
or SIGHUP changes nothing: Slurm sends SIGTERM to a role and to its launcher, which then asks the
role to end, and timeout sends it to a process and then to its group. Scripts keep their grace.

SIGUSR1 and SIGUSR2 are for training scripts, which may save a checkpoint when one comes: Slurm
sends them before a time limit. The loop passes them on.

Outside the main thread, no handlers can be set. Signals then reach no job.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any, final

FOR_SCRIPTS = (signal.SIGUSR1, signal.SIGUSR2)
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_WAKE_BYTES = 1 << 12


def outlive_script_signals() -> None:
    """Lets this process go on if a signal for scripts comes while no job runs.

    Programs that it starts do not inherit this.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    for signum in FOR_SCRIPTS:
        if signal.getsignal(signum) is signal.SIG_DFL:
            signal.signal(signum, _do_nothing)


@contextmanager
def ignored_script_signals() -> Iterator[None]:
    """What is started in the context ignores signals for scripts until it sets a handler."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {signum: signal.signal(signum, signal.SIG_IGN) for signum in FOR_SCRIPTS}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _do_nothing(signum: int, frame: FrameType | None) -> None:
    pass


@final
class Signals:
    """A context manager that sets the handlers. ``wake_fd`` is readable after a signal."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.wake_fd, self._write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._for_scripts: list[int] = []
        self._before: dict[int, Any] = {}
        self._wakeup_before = -1

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received = signum
        elif signum == signal.SIGINT:
            raise KeyboardInterrupt

    def _note_for_scripts(self, signum: int, frame: FrameType | None) -> None:
        self._for_scripts.append(signum)

    def take_for_scripts(self) -> list[int]:
        """The signals for scripts that have come since the last call, each once."""
        found, self._for_scripts = self._for_scripts, []
        return list(dict.fromkeys(found))

    def clear_wake(self) -> None:
        """Makes ``wake_fd`` unreadable until the next signal."""
        with suppress(BlockingIOError):
            os.read(self.wake_fd, _WAKE_BYTES)

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            self._wakeup_before = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
            notes = dict.fromkeys(_SIGNALS, self._note)
            notes |= dict.fromkeys(FOR_SCRIPTS, self._note_for_scripts)
            for signum, note in notes.items():
                # An ignored signal stays ignored. nohup relies on that to keep a job alive.
                if signal.getsignal(signum) not in (signal.SIG_IGN, None):
                    self._before[signum] = signal.signal(signum, note)
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
