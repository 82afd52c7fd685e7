"""The connection of a role with a launcher on another host: the role's standard input.

    one line of JSON   what the role is told (``Told``): the job file, and keys of the job
    empty lines        one per second: the launcher is alive
    "usr1", "usr2"     the launcher has got this signal, which is for the training script
    "end"              the launcher asks for the end of the role

So a command line has nothing of a job but a role's kind and number, and no file must be copied
before the start. If the input ends or is silent for too long, the launcher or its network is gone.
Then this process gets SIGTERM, which ends the role in order, as Ctrl-C at a launcher does. It also
gets the signals for the script, and passes them on (signals.py).

Threads: ``Tether`` has one of its own, from ``__enter__`` to ``__exit__``. It alone reads the input
after the first line, and sends SIGTERM at most once. What it finds is
written before that signal and read after the thread was joined, so there is no lock. Silence counts
only while this process runs: if it was stopped itself, it knows nothing about the launcher.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import final

from byteprophet.errors import UserError
from byteprophet.input_files import parse_json
from byteprophet.readable import readable

BEAT = b"\n"
END = b"end\n"
PASSED_ON: Mapping[int, bytes] = {signal.SIGUSR1: b"usr1\n", signal.SIGUSR2: b"usr2\n"}
BEAT_PERIOD_S = 1.0
_LONGEST_WORD = max(len(word) for word in (END, *PASSED_ON.values()))
_FIRST_LINE_TIMEOUT_S = 60.0
_MOST_BYTES = 1 << 24
_LONGEST_STEP_S = 2 * BEAT_PERIOD_S
_ENDED = "the launcher is gone: its connection to this role has ended"


@dataclass(frozen=True)
class Told:
    """What a role is told.

    Attributes:
        job: the text of a job file.
        keys: the controller's key files, by name; none if the job or the role has no use for them.
        mesh_key: a secret of the job's ranks; "": there is none.
        is_scratch: the run directory exists for this role alone, and the launcher fetches it. If
            the launcher is gone, the role removes it.
    """

    job: str
    keys: Mapping[str, str] = field(default_factory=dict)
    mesh_key: str = ""
    is_scratch: bool = False

    def to_line(self) -> bytes:
        """The first line of a tether."""
        return json.dumps(asdict(self)).encode() + b"\n"


def read_told(descriptor: int) -> Told:
    """The first line from ``descriptor``. Raises ``UserError`` if there is none, or another one."""
    return _parse(_first_line(descriptor))


def _first_line(descriptor: int) -> bytes:
    deadline_s = time.monotonic() + _FIRST_LINE_TIMEOUT_S
    line = b""
    while not line.endswith(b"\n"):
        left_s = max(0.0, deadline_s - time.monotonic())
        if not readable([descriptor], left_s):
            raise UserError(
                f"--job -: no job came on standard input within {_FIRST_LINE_TIMEOUT_S:.0f} s"
            )
        letter = os.read(descriptor, 1)  # beats follow, which are not ours to take
        if not letter:
            raise UserError("--job -: standard input ended before the job came")
        line += letter
        if len(line) > _MOST_BYTES:
            raise UserError(f"--job -: the job is longer than {_MOST_BYTES >> 20} MiB")
    return line


def _parse(line: bytes) -> Told:
    try:
        fields = parse_json(line)
    except ValueError as error:
        raise UserError(f"--job -: a launcher sends JSON first, this is not: {error}") from None
    kinds = {"job": str, "keys": dict, "mesh_key": str, "is_scratch": bool}
    if not isinstance(fields, dict) or {n: type(v) for n, v in fields.items()} != kinds:
        raise UserError(f"--job -: a launcher sends {', '.join(kinds)}; its version differs")
    if not all(isinstance(text, str) for text in fields["keys"].values()):
        raise UserError("--job -: keys: must be texts")
    return Told(**fields)


@final
class Tether:
    """A context manager that watches ``descriptor``, from which the first line was read.

    ``silent_s``: the silence after which the launcher counts as gone; None: never. ``lost`` is one
    line if the launcher was found to be gone, else None.
    """

    def __init__(self, descriptor: int, silent_s: float | None) -> None:
        self.lost: str | None = None
        self._is_asked = False
        self._descriptor = descriptor
        self._silent_s = silent_s
        self._stop_reading, self._stop = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._watch, name="tether", daemon=True)

    def __enter__(self) -> Tether:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._stop)
        self._thread.join()
        os.close(self._stop_reading)
        # If the role ended because nobody took its output, the thread may not have come to look.
        while not self._is_asked and self.lost is None:
            if not readable([self._descriptor], 0):
                break
            if not os.read(self._descriptor, 1 << 12):
                self.lost = _ENDED

    def _watch(self) -> None:
        silence_s, before_s, rest = 0.0, time.monotonic(), b""
        while True:
            found = readable([self._descriptor, self._stop_reading], BEAT_PERIOD_S)
            if self._stop_reading in found:
                return
            now_s = time.monotonic()
            silence_s += min(now_s - before_s, _LONGEST_STEP_S)
            before_s = now_s
            if found:
                data = os.read(self._descriptor, 1 << 12)
                silence_s = 0.0
                *lines, rest = (rest + data).split(b"\n")
                rest = rest[-_LONGEST_WORD:]
                self._pass_on(lines)
                if not data:
                    self.lost = _ENDED
                elif END.strip() in lines:
                    self._is_asked = True
                else:
                    continue
            elif self._silent_s is None or silence_s < self._silent_s:
                continue
            else:
                self.lost = f"the launcher has been silent for {silence_s:.0f} s"
            os.kill(os.getpid(), signal.SIGTERM)
            return

    def _pass_on(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            for signum, word in PASSED_ON.items():
                if line == word.strip():
                    os.kill(os.getpid(), signum)
