"""What the scripts here have in common: exits, lines for people, options, rates of links."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

from byteprophet import _core, schedulers
from byteprophet.bench.grid_jobs import code_version
from byteprophet.bench.grid_store import Record
from byteprophet.bound import all_reduced_bytes
from byteprophet.cli.lists import split
from byteprophet.errors import JobFailed, UserError, one_line
from byteprophet.network import PAYLOAD_SHARE
from byteprophet.report.console import progress_of as progress_of
from byteprophet.report.grid import code_notes

_INTERRUPTED = 130
_Number = TypeVar("_Number", int, float)


def run_script(main: Callable[[Sequence[str]], None]) -> NoReturn:
    """Run ``main`` and exit: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    try:
        main(sys.argv[1:])
    except (JobFailed, UserError) as error:
        print(f"byteprophet: error: {one_line(str(error))}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UserError) else 1)
    except KeyboardInterrupt:
        print("byteprophet: error: interrupted", file=sys.stderr)
        sys.exit(_INTERRUPTED)
    sys.exit(0)


def add_record_options(parser: argparse.ArgumentParser, out: str) -> None:
    """Of a script whose jobs are recorded as a grid's are; ``out``: where, if nothing is said."""
    parser.add_argument(
        "--slowed", type=int, default=1, help="compute and links so many times slower"
    )
    parser.add_argument("--out", type=Path, default=Path(out), help="directory of the records")
    parser.add_argument("--report", action="store_true", help="run nothing, print what there is")


def print_code_notes(records: Sequence[Record]) -> None:
    """Says where ``records`` were measured with other code than there is now."""
    for line in code_notes(sorted({record["code"] for record in records}), code_version()):
        print(line)


def scheduler_with_settings(text: str) -> tuple[str, dict[str, int]]:
    """``SCHEDULER[:NAME=VALUE,...]``; UserError for what is not name=integer."""
    name, _, settings = text.partition(":")
    try:
        return name, _core.parse_settings(settings)
    except ValueError as error:
        raise UserError(f"settings of {name}: {error}") from None


def scheduler_names(text: str) -> list[str]:
    """The value of ``--schedulers``; UserError for a name that there is not."""
    names = split(text, "--schedulers")
    for name in names:
        schedulers.resolve(name, {})
    return names


def ratios(text: str) -> list[float]:
    """The value of ``--ratios``: times of all-reduces over the compute."""
    return numbers(text, "--ratios", float, 0.01, 100)


def numbers(
    text: str, option: str, kind: type[_Number], least: _Number, most: _Number
) -> list[_Number]:
    """The numbers in ``text``, separated by commas.

    UserError naming ``option`` unless all are from ``least`` to ``most``.
    """
    try:
        found = [kind(part) for part in split(text, option)]
    except ValueError:
        found = []
    if not found or not all(least <= number <= most for number in found):
        raise UserError(f"{option} {text!r}: must be numbers from {least} to {most}")
    return found


def check_least(options: argparse.Namespace, **least: float) -> None:
    """Raise ``UserError`` naming the first of these options that is less than its least value.

    Infinite numbers are refused, too.
    """
    for name, value in least.items():
        given = getattr(options, name)
        if not value <= given < math.inf:
            raise UserError(f"--{name.replace('_', '-')} {given}: must be at least {value:g}")


def link_bps(size_bytes: int, workers: int, ratio: float, compute_ns: int) -> int:
    """The rate of links on which an all-reduce takes ``ratio`` times the compute.

    ``size_bytes``: of the gradients that all ``workers`` average.
    """
    payload_bps = 8e9 * all_reduced_bytes(size_bytes, workers) / (ratio * compute_ns)
    return math.ceil(payload_bps / PAYLOAD_SHARE)
