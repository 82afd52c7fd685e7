"""The exceptions that reach the command line, and those that a training script can catch.

``Error``
 ├── ``UserError``   wrong usage or input: one line, exit status 2
 │    └── ``NotWritten``   a file cannot be written (``whole_files.py``)
 └── ``JobFailed``   a job started but failed: one line, exit status 1

``SystemExit``
 └── ``EndedBySignal``   a signal ended a job: one line, exit status 128 plus the signal's number

``RuntimeError``
 ├── ``PeerLost``   another rank, or another role of the job, is gone
 └── ``TimedOut``   the time limit of a wait for another rank has passed
"""

from __future__ import annotations

import contextlib
import io
import select
import sys
from typing import TextIO

_LONGEST_LINE = 1000
_TAKEN_MS = 1000


class Error(Exception):
    """Base class; its text is one line that says what, where, and what to do."""


class UserError(Error):
    """The request cannot be carried out as written. ``byteprophet.UserError``."""


class NotWritten(UserError):
    """A file cannot be written: no space, no permission, no directory."""


class JobFailed(Error):
    """A role of a job failed, was killed, or did not answer in time."""


class EndedBySignal(SystemExit):
    """SIGTERM or SIGHUP ended a job. ``cause``: why, where whoever sent it has said so."""

    def __init__(self, signum: int, cause: str | None = None) -> None:
        super().__init__(128 + signum)
        self.signum = signum
        self.cause = cause


class PeerLost(RuntimeError):
    """Another rank, or another role of the job, is gone: what needs it never comes.

    Parameters may be between two updates. ``byteprophet.PeerLost``.
    """


class TimedOut(RuntimeError):
    """Another rank was waited for as long as ``BYTEPROPHET_TIMEOUT_S`` allows.

    It may be slow, gone, or in another call. ``byteprophet.TimedOut``.
    """


def because_of(error: BaseException, text: str) -> RuntimeError:
    """A ``RuntimeError`` that says ``text``, of the class by which scripts catch ``error``."""
    for kind in (PeerLost, TimedOut):
        if isinstance(error, kind):
            return kind(text)
    return RuntimeError(text)


def tell(text: str) -> None:
    """Say ``text`` in a line on standard error, if it can be written there.

    A disk that is full there, too, is not the job's end, and a pipe that nobody reads is waited for
    no longer than a second.
    """
    output: TextIO | None = sys.stderr  # None: this process was started without one
    with contextlib.suppress(OSError):
        if output is not None and _is_writable(output):
            print(f"byteprophet: {text}\n", end="", file=output, flush=True)


def _is_writable(output: TextIO) -> bool:
    """Whether somebody takes what is written to ``output``, at the latest after a second."""
    try:
        descriptor = output.fileno()
    except io.UnsupportedOperation:  # it is in memory
        return True
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(_TAKEN_MS))


def warn(text: str) -> None:
    """Say that ``text`` is a warning, as ``tell`` does."""
    tell(f"warning: {text}")


def described(error: Exception) -> str:
    """What ``error`` says, with its kind where it is none of ours."""
    return str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}"


def one_line(text: str) -> str:
    """``text`` as a line for people: not too long, and without what would steer a terminal.

    An error quotes what somebody gave, which may be anything.
    """
    line = " ".join(text.split())
    if len(line) > _LONGEST_LINE:
        half = _LONGEST_LINE // 2
        line = f"{line[:half]} ... {line[-half:]}"
    return printable(line)


def first_line(error: Exception) -> str:
    """The first line of what ``error`` says, as ``one_line`` has it."""
    return one_line(str(error).strip().partition("\n")[0])


def printable(text: str) -> str:
    """``text`` with escapes instead of letters that would steer a terminal or break a line."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
