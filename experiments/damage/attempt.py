"""One damaged input, read as a command would read it, and what became of it."""

from __future__ import annotations

import contextlib
import io
import json
import resource
import signal
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, NoReturn

from byteprophet.cli.main import run_cli
from byteprophet.control.messages import Refused
from byteprophet.errors import JobFailed, UserError, one_line
from damage.formats import Command, Format, Reader
from damage.of_places import SHARE, something_else

LIMIT_S = 20.0
"""For one input, of which most take less than half a second."""
MOST_BYTES = 512 << 20
"""By which one input may raise the peak of the process' memory."""
_LONGEST_LINE = 3000
_REFUSED_STATUS = 2

RESULT, REFUSED, TRACEBACK, HANG, MEMORY = "result", "refused", "traceback", "hang", "memory"
OUTCOMES = (RESULT, REFUSED, TRACEBACK, HANG, MEMORY)
FAULTS = (TRACEBACK, HANG, MEMORY)


@dataclass(frozen=True)
class Outcome:
    """``what``: one of ``OUTCOMES``. ``text``: the refusal, or what went wrong, and where."""

    what: str
    text: str = ""


class _TooLongError(BaseException):
    """The time limit has passed; nothing that is tested catches it."""


def random_of(format_name: str, seed: int, number: int) -> Random:
    """The generator of input ``number``: the same whichever inputs are tried with it."""
    return Random(f"{format_name} {seed} {number}")


def check_intact(samples: Path, wanted: Format) -> None:
    """JobFailed unless every reader gives a result where nothing is damaged."""
    for path in sorted(samples.glob(wanted.where)):
        for reader in wanted.readers:
            outcome = judge(reader, samples, path)
            if outcome.what != RESULT:
                raise JobFailed(f"{wanted.name}: {path} undamaged: {outcome.text}")


def attempt(samples: Path, wanted: Format, seed: int, number: int, quick: bool = False) -> Outcome:
    """Damage one file in ``samples``, read it, put it back. ``quick``: by the first reader."""
    random = random_of(wanted.name, seed, number)
    path = random.choice(sorted(samples.glob(wanted.where)))
    reader = wanted.readers[0] if quick else random.choice(wanted.readers)
    with damaged_file(wanted, path, random):
        return judge(reader, samples, path)


@contextmanager
def damaged_file(wanted: Format, path: Path, random: Random) -> Iterator[None]:
    """``path`` with another content, or with what is no file; as before afterwards."""
    if wanted.is_file and random.random() < SHARE:
        with something_else(path, random, path.parent.parent / "aside"):
            yield
        return
    content = path.read_bytes()
    path.write_bytes(random.choice(wanted.damages)(content, random))
    try:
        yield
    finally:
        path.write_bytes(content)


def judge(reader: Reader, samples: Path, path: Path) -> Outcome:
    """What becomes of reading ``path``, which is somewhere in ``samples``."""
    peak_bytes = _peak_bytes()
    try:
        with _time_limit():
            outcome = _read(reader, samples, path)
    except _TooLongError as error:
        return Outcome(HANG, f"took more than {LIMIT_S:g} s:\n{error}")
    except MemoryError:
        return Outcome(MEMORY, traceback.format_exc())
    except Exception:  # noqa: BLE001  (whatever comes is what is looked for)
        return Outcome(TRACEBACK, traceback.format_exc())
    more_bytes = _peak_bytes() - peak_bytes
    if more_bytes > MOST_BYTES:
        return Outcome(MEMORY, f"took {more_bytes >> 20} MiB")
    return outcome


def _read(reader: Reader, samples: Path, path: Path) -> Outcome:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if isinstance(reader, Command):
            return _run(reader, samples, path)
        try:
            reader(samples, path)
        except (UserError, JobFailed, Refused) as error:
            return _refusal(one_line(str(error)))  # as whoever runs it says it
    return Outcome(RESULT)


def _run(command: Command, samples: Path, path: Path) -> Outcome:
    said, complained = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(complained):
        status = run_cli(command.arguments(samples, path))
    return told(command, status, said.getvalue(), complained.getvalue())


def told(command: Command, status: int, said: str, complained: str) -> Outcome:
    """What a command's exit status and output amount to; no command here starts a job."""
    if status == _REFUSED_STATUS:
        if complained.count("\n") != 1:
            return Outcome(TRACEBACK, f"not one line: {complained}")
        return _refusal(complained.strip())
    if status:
        return Outcome(TRACEBACK, f"exit status {status}: {complained}")
    if command.prints_json:
        try:
            json.loads(said, parse_constant=_refuse_constant)
        except ValueError as error:
            return Outcome(TRACEBACK, f"what it prints is not JSON: {error}")
    said.encode()  # a terminal could not show it
    return Outcome(RESULT)


def _refusal(line: str) -> Outcome:
    if "\n" in line or len(line) > _LONGEST_LINE or not line.strip():
        return Outcome(TRACEBACK, f"no line to be read, of {len(line)} letters: {line[:200]!r}")
    return Outcome(REFUSED, line)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


@contextmanager
def _time_limit() -> Iterator[None]:
    def stop(_signum: int, frame: Any) -> NoReturn:
        place = traceback.format_stack(frame, 8) if frame else []
        raise _TooLongError("".join(place))

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
