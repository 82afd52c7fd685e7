"""What commands print, where a disk may be full or nobody reads any more."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from byteprophet.errors import JobFailed, warn

# What BytePS tells of every job as it starts and ends, whether or not all is well. Threads write
# at once, so a line may begin with a part of another one.
_NOTICE = re.compile(
    r"\S+\.(?:cc|h):\d+: (?:BytePS server engine uses|Creating Van: |Start ZMQ recv thread"
    r"|byteps has been shutdown)"
)
_ASK_FOR_NOTICES = ("BYTEPS_LOG_LEVEL", "PS_VERBOSE")


def write_no_more(output: TextIO) -> None:
    """Have ``output`` go nowhere: what is buffered must not fail once more at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, output.fileno())
    os.close(nowhere)


def echo_to(
    logs: Path, output: TextIO | None = None, names: bool = True
) -> Callable[[str, str], None]:
    """Shows roles' lines on ``output`` (None: standard output). ``logs`` has them in any case.

    BytePS' notices, which it gives in every job, are shown only to who has set its variables.
    ``names``: with the role's name before each line.
    It raises ``JobFailed`` if nobody reads any more.
    """
    shown: TextIO | None = sys.stdout if output is None else output
    with_notices = any(name in os.environ for name in _ASK_FOR_NOTICES)

    def echo(role: str, line: str) -> None:
        # None: this process was started without a standard output.
        if shown is None or (not with_notices and _NOTICE.search(line)):
            return
        try:
            # In one write: with mpirun, the roles of a host share what they print to.
            whole = f"[{role}] {line}\n" if names else f"{line}\n"
            _write(shown, whole)
        except BrokenPipeError:
            write_no_more(shown)
            raise JobFailed("stopped, because nobody reads the output any more") from None
        except OSError as error:
            write_no_more(shown)
            warn(f"the output cannot be written: {error.strerror}; the job goes on, see {logs}")

    return echo


def _write(output: TextIO, text: str) -> None:
    """Writes without the lock of ``output``: who waits here for a reader must not keep it.

    Otherwise, nobody could flush it, and Python would abort at its end.
    """
    try:
        descriptor = output.fileno()
    except io.UnsupportedOperation:  # it is in memory
        output.write(text)
        return
    rest = memoryview(text.encode(output.encoding or "utf-8", "backslashreplace"))
    while rest:
        rest = rest[os.write(descriptor, rest) :]
