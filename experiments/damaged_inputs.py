"""Reads damaged inputs of every format and counts what becomes of them.

Makes files with real commands, damages them from a seed, and reads each as the commands do: the
outcome must be a result, or one line. Prints a table: per format, how many inputs gave a result,
were refused in one line, ended in a traceback, took too long, or took too much memory. Exit status
1 if any of the last three did. A sample of each format goes through the installed command.

    damaged_inputs.py [--mutations 2000] [--seed 1] [--format "plan.json"]

``--first N --mutations 1`` tries the input of that number alone. Takes about an hour for 2,000.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from damage.apart import outcomes
from damage.attempt import (
    FAULTS,
    HANG,
    LIMIT_S,
    OUTCOMES,
    Outcome,
    check_intact,
    damaged_file,
    random_of,
    told,
)
from damage.formats import FORMATS, Command, Format
from damage.samples import make_samples
from rich.table import Table
from script import progress_of, run_script

from byteprophet.errors import JobFailed, UserError
from byteprophet.report.console import table_console

_LISTED, _SHOWN = 30, 3  # faults of a format that are named, and that are told in full


def main(arguments: Sequence[str]) -> None:
    """Try all inputs; JobFailed where one is a fault."""
    parser = argparse.ArgumentParser(description="damaged inputs of every format")
    parser.add_argument("--mutations", type=int, default=2000, help="inputs of each format")
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--format", action="append", help="only this format; repeatable")
    parser.add_argument(
        "--installed", type=int, default=10, help="so many of them by the installed command, too"
    )
    parser.add_argument("--samples", type=Path, help="keep what was made here")
    options = parser.parse_args(arguments)
    chosen = _chosen(options.format)
    say = progress_of("damaged inputs")
    with tempfile.TemporaryDirectory(prefix="samples-") as place:
        say("making files")
        kept = (options.samples or Path(place) / "kept").absolute()
        make_samples(kept, {one.part for one in chosen})
        samples = Path(place) / "samples"  # damaged in place, a file at a time
        shutil.copytree(kept, samples)
        numbers = range(options.first, options.first + options.mutations)
        table = _table()
        faults = 0
        for wanted in chosen:
            check_intact(samples, wanted)
            found = list(outcomes(samples, wanted.name, options.seed, numbers))
            found += _as_commands(samples, wanted, options.seed, numbers[: options.installed])
            counts = Counter(outcome.what for _, outcome in found)
            table.add_row(wanted.name, str(len(found)), *(str(counts[what]) for what in OUTCOMES))
            say(f"{wanted.name}: {dict(counts)}")
            faults += _tell(wanted, options.seed, found)
    table_console().print(table)
    if faults:
        raise JobFailed(f"{faults} inputs gave neither a result nor one line")


def _chosen(names: Sequence[str] | None) -> list[Format]:
    known = [one.name for one in FORMATS]
    for name in names or ():
        if name not in known:
            raise UserError(f"--format {name}: there are {', '.join(known)}")
    return [one for one in FORMATS if names is None or one.name in names]


def _table() -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("format")
    for title in ("inputs", *OUTCOMES):
        table.add_column(title, justify="right")
    return table


def _tell(wanted: Format, seed: int, found: Iterable[tuple[int, Outcome]]) -> int:
    """Print the faults, the first ones in full; returns how many there are."""
    faults = [(number, outcome) for number, outcome in found if outcome.what in FAULTS]
    for place, (number, outcome) in enumerate(faults[:_LISTED]):
        print(f"{wanted.name}: --seed {seed} --first {number}: {outcome.what}", flush=True)
        lines = outcome.text.strip().splitlines()
        for line in lines[-30:] if place < _SHOWN else lines[-1:]:
            print(f"    {line[:300]}")
    return len(faults)


def _as_commands(
    samples: Path, wanted: Format, seed: int, numbers: range
) -> Iterable[tuple[int, Outcome]]:
    """The same inputs, read by the installed command."""
    commands = [reader for reader in wanted.readers if isinstance(reader, Command)]
    for number in numbers if commands else ():
        random = random_of(wanted.name, seed, number)
        path = random.choice(sorted(samples.glob(wanted.where)))
        with damaged_file(wanted, path, random):
            yield number, _installed(random.choice(commands), samples, path)


def _installed(command: Command, samples: Path, path: Path) -> Outcome:
    try:
        done = subprocess.run(
            [sys.executable, "-m", "byteprophet", *command.arguments(samples, path)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S + 60,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return Outcome(HANG, str(error))
    return told(command, done.returncode, done.stdout, done.stderr)


if __name__ == "__main__":
    run_script(main)
