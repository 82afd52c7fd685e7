"""Runs a job's caretaker (leftovers.py as a process) from the job's start to its end."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from types import TracebackType
from typing import final

from byteprophet.launcher import leftovers
from byteprophet.launcher.leftovers import Leftovers
from byteprophet.launcher.signals import FOR_SCRIPTS

_SWEEP_TIMEOUT_S = 10.0


@final
class Caretaker:
    """A context manager. When it exits, nothing of the job is left."""

    def __init__(self, job: Leftovers) -> None:
        self._job = job
        # Slurm sends signals to all processes of a role, and this one is needed after them. It
        # inherits the mask, so that there is no moment at which one of them ends it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, *FOR_SCRIPTS])
        try:
            self._process = subprocess.Popen(
                # With -I -S, nothing in the user's environment can prevent the start.
                [sys.executable, "-I", "-S", leftovers.__file__, job.to_json()],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self.pid = self._process.pid

    def __enter__(self) -> Caretaker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            status = self._process.wait(_SWEEP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_SWEEP_TIMEOUT_S)
            status = None
        if status != 0:  # the caretaker was killed, by us or by somebody else
            leftovers.sweep(self._job)
