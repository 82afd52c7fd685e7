"""Runs a command that passes its standard input on to a role elsewhere (srun), as a program.

    python -I -S tethered.py FILE BEAT_PERIOD_S ROLE_TIMEOUT_S -- COMMAND...

The command gets the content of FILE, then a beat per second (launcher/tether.py), a word for each
SIGUSR1 and SIGUSR2 that comes here, then, after SIGTERM, the request to end. Its output and exit
status become those of this process. If the role does not end within ROLE_TIMEOUT_S of the request,
because its host is gone, the command is killed.

This file imports only the standard library: it starts quickly, and there is one per role. One
thread does everything. It never waits for the pipe: beats that find it full are left out.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

_BEAT = b"\n"
_END = b"end\n"
_PASSED_ON: dict[int, bytes] = {signal.SIGUSR1: b"usr1\n", signal.SIGUSR2: b"usr2\n"}


def main(told: bytes, period_s: float, role_timeout_s: float, command: list[str]) -> int:
    """Runs ``command`` to its end; its exit status, or 128 plus the number of its signal."""
    asked = threading.Event()
    words: list[bytes] = []
    signal.signal(signal.SIGTERM, lambda *_: asked.set())
    for signum in _PASSED_ON:
        signal.signal(signum, lambda number, _: words.append(_PASSED_ON[number]))
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    assert process.stdin is not None
    pipe = process.stdin.fileno()
    with contextlib.suppress(BrokenPipeError):
        rest = memoryview(told)
        while rest:
            rest = rest[os.write(pipe, rest) :]
    os.set_blocking(pipe, False)
    deadline_s = None
    while process.poll() is None:
        if asked.is_set():
            deadline_s = deadline_s or time.monotonic() + role_timeout_s
            if time.monotonic() > deadline_s:
                process.kill()  # what it would wait for is gone
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            while words:
                os.write(pipe, words[0])
                del words[0]
            os.write(pipe, _END if asked.is_set() else _BEAT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(period_s)
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


if __name__ == "__main__":
    path, period, role_timeout, _, *words = sys.argv[1:]
    sys.exit(main(Path(path).read_bytes(), float(period), float(role_timeout), words))
