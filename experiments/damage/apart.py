"""Attempts in a process of their own, whose memory is limited and whose end is survived."""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from damage.attempt import HANG, LIMIT_S, TRACEBACK, Outcome, attempt
from damage.formats import FORMATS

_SPAWN = multiprocessing.get_context("spawn")
_ROOM_BYTES = 2 << 30  # of addresses, beyond what the process has when it begins
_PATIENCE_S = 2 * LIMIT_S + 60  # what is stuck in native code does not see the time limit
_END_S = 10.0


def outcomes(samples: Path, name: str, seed: int, numbers: range) -> Iterator[tuple[int, Outcome]]:
    """Number and outcome of each input; whatever ends the process is the outcome of its input."""
    done = 0
    while done < len(numbers):
        with tempfile.TemporaryDirectory(prefix="damaged-") as place:
            for number, outcome in _in_one_process(samples, place, name, seed, numbers[done:]):
                done += 1
                yield number, outcome


def _in_one_process(
    samples: Path, place: str, name: str, seed: int, numbers: range
) -> Iterator[tuple[int, Outcome]]:
    """As ``outcomes``, up to the input that ended the process; ``place`` is for its files."""
    here, there = _SPAWN.Pipe(duplex=False)
    process = _SPAWN.Process(target=_serve, args=(there, samples, place, name, seed, numbers))
    process.start()
    there.close()
    try:
        for number in numbers:
            if not here.poll(_PATIENCE_S):
                yield number, Outcome(HANG, f"no answer within {_PATIENCE_S:g} s")
                return
            try:
                yield number, here.recv()
            except EOFError:
                process.join(_END_S)
                yield number, Outcome(TRACEBACK, f"the process ended: {process.exitcode}")
                return
    finally:
        process.kill()
        process.join(_END_S)
        here.close()


def _serve(
    there: Connection, samples: Path, place: str, name: str, seed: int, numbers: range
) -> None:
    wanted = next(one for one in FORMATS if one.name == name)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)  # an input may name /dev/stdin
    own = Path(place) / "samples"
    shutil.copytree(samples, own)
    os.chdir(place)
    taken = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most_bytes = taken * resource.getpagesize() + _ROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, resource.RLIM_INFINITY))
    for number in numbers:
        there.send(attempt(own, wanted, seed, number))
