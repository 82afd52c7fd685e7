"""Holds a job's caretaker (leftovers.py as a process) from the job's start to its end."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from types import TracebackType
from typing import final

from byteprophet.launcher import leftovers
from byteprophet.launcher.leftovers import Leftovers

_SWEEP_TIMEOUT_S = 10.0


@final
class Caretaker:
    """A context manager; on leaving it, everything of the job is gone."""

    def __init__(self, job: Leftovers) -> None:
        self._job = job
        self._process = subprocess.Popen(
            # -I -S: nothing of the user's environment can keep it from starting.
            [sys.executable, "-I", "-S", leftovers.__file__, job.to_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
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
        if status != 0:  # somebody killed it
            leftovers.sweep(self._job)
