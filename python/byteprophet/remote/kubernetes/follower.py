"""Shows and keeps the logs of pods, also where ``kubectl logs`` ends before its pod.

A proxy that is in the way, or the kubelet when it begins a new file, may end ``kubectl logs
--follow`` at any time. It is then started again, from the time of the last line that has come.
"""

from __future__ import annotations

import io
import re
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TextIO

from byteprophet.errors import one_line
from byteprophet.remote.echoes import with_role
from byteprophet.remote.kubernetes.pod import CONTAINER, Pod
from byteprophet.whole_files import OneWarning, writing

_FIRST_PAUSE_S = 3.0  # in which the end of a pod is usually seen
_LONGEST_PAUSE_S = 30.0  # before kubectl is started again
_END_TIMEOUT_S = 10.0  # of kubectl, once it was killed
_COMPLAINT_BYTES = 4096
_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d) ?")

_printing = threading.Lock()


def say(text: str) -> None:
    """Prints ``text`` as one line; any thread may."""
    with suppress(OSError), _printing:
        print(text, flush=True)


@dataclass(frozen=True)
class _Stamp:
    """When a line was written. ``text``: as the cluster says it. ``key``: earlier ones are less."""

    text: str
    key: tuple[datetime, str]

    @classmethod
    def parse(cls, found: re.Match[str]) -> _Stamp:
        second, fraction, zone = found.groups()
        moment = datetime.fromisoformat(second + ("+00:00" if zone == "Z" else zone))
        return cls(found[0].rstrip(), (moment, (fraction or "").ljust(9, "0")))


class Follower:
    """A thread that reads one pod's log to the pod's end, or until ``stop``.

    ``lines`` are the last ones; they may be read after the end of the thread.
    """

    def __init__(self, kubectl: Sequence[str], pod: Pod, log: Path, unwritten: OneWarning) -> None:
        self.role = pod.role
        self.lines: deque[str] = deque(maxlen=100)
        self._command = [*kubectl, "logs", "--follow", "--timestamps", "--container", CONTAINER]
        self._pod = pod
        self._path = log
        self._unwritten = unwritten
        self._log: TextIO | None = None
        with unwritten.instead(), writing(log):
            self._log = log.open("w", encoding="utf-8")
        self._last: _Stamp | None = None  # of the last line that has come
        self._is_old = False  # whether the line that is read has come before
        self._rest = ""  # a line whose end has not come
        self._is_told = False
        self._has_ended = threading.Event()
        self._is_stopping = threading.Event()
        self._starting = threading.Lock()  # around what stop() must not miss
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._follow, name=pod.role, daemon=True)
        self._thread.start()

    @property
    def has_ended(self) -> bool:
        """Whether somebody has said so of the pod."""
        return self._has_ended.is_set()

    def end_with_log(self) -> None:
        """The pod has ended: the end of its log is that of the thread."""
        self._has_ended.set()

    def wait(self, timeout_s: float) -> None:
        """Waits for the end of the thread, for at most ``timeout_s``."""
        self._thread.join(timeout_s)

    def stop(self) -> None:
        """The thread reads no more. Does not wait for its end."""
        with self._starting:
            self._is_stopping.set()
            self._has_ended.set()
            if self._process is not None:
                self._process.kill()

    def close(self) -> None:
        """Waits for the end of the thread after ``stop``."""
        self._thread.join(_END_TIMEOUT_S)
        if self._log is not None:
            with suppress(OSError):
                self._log.close()

    def _follow(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._is_stopping.is_set():
            before = self._last
            status, complaint = self._read()
            if status == 0 and self._has_ended.wait(pause_s):
                break
            if status != 0:
                self._tell(complaint)
                (self._is_stopping if self.has_ended else self._has_ended).wait(pause_s)
            is_moving = self._last is not before
            pause_s = _FIRST_PAUSE_S if is_moving else min(2 * pause_s, _LONGEST_PAUSE_S)
        if self._rest:
            self._take(self._rest, None)

    def _tell(self, complaint: str) -> None:
        """Says once that there may be a gap in time between two lines."""
        if not self._is_told and not self.has_ended:
            self._is_told = True
            say(
                f"byteprophet: warning: kubectl logs of {self.role} ended ({complaint}); it is "
                "started again until the pod ends"
            )

    def _read(self) -> tuple[int, str]:
        """Takes the lines after the last one until kubectl ends.

        Returns kubectl's exit status, and what it said against it.
        """
        after, self._rest, self._is_old = self._last, "", False
        since = [] if after is None else ["--since-time", after.text]
        try:
            # Not the pipe of the lines: what kubectl says itself is none of the role's lines.
            with tempfile.TemporaryFile() as errors:
                with self._starting:
                    if self._is_stopping.is_set():
                        return 1, ""
                    self._process = process = subprocess.Popen(
                        [*self._command, self._pod.name, *since],
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.PIPE,
                        stderr=errors,
                        text=True,
                        errors="replace",
                    )
                with process:
                    assert isinstance(process.stdout, io.TextIOWrapper)
                    process.stdout.reconfigure(newline="\n")  # a \r does not end a line
                    for line in process.stdout:
                        if line.endswith("\n"):
                            self._take(line[:-1], after)
                        else:  # cut off; it comes again, unless the log ends so
                            self._rest = line
                errors.seek(0)
                said = errors.read(_COMPLAINT_BYTES).decode(errors="replace")
                return process.returncode, one_line(said) or f"status {process.returncode}"
        except OSError as error:
            return 1, str(error)

    def _take(self, line: str, after: _Stamp | None) -> None:
        """Shows and keeps ``line``, but not if it has come before: ``--since-time`` has seconds."""
        found = _STAMP.match(line)
        if found is not None:
            stamp = _Stamp.parse(found)
            self._is_old = after is not None and stamp.key <= after.key
            self._last = self._last if self._is_old else stamp
        if self._is_old:
            return
        text = line if found is None else line[found.end() :]
        # A progress bar redraws itself with \r, so the line is its last state.
        shown = text.rstrip("\r").rpartition("\r")[2]
        self.lines.append(shown)
        if self._log is not None:
            with suppress(ValueError), self._unwritten.instead(), writing(self._path):
                self._log.write(text + "\n")  # ValueError: it was closed
                self._log.flush()
        say(with_role(self.role, shown))


def close_all(followers: Iterable[Follower], timeout_s: float) -> None:
    """Ends all ``followers``.

    Those whose pods have ended first read the last lines, for at most ``timeout_s`` together.
    """
    every = list(followers)
    end_s = time.monotonic() + timeout_s
    for each in every:
        if each.has_ended:
            each.wait(max(0.0, end_s - time.monotonic()))
    for each in every:
        each.stop()
    for each in every:
        each.close()
