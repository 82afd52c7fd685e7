"""Steps of a link's rate during a run, and how a paced job signals that a step is due.

A step at an update is made when rank 0 of a paced job begins this update. Rank 0 signals it by a
file in the run directory's ``steps/``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from byteprophet.errors import UserError
from byteprophet.network.rate import format_rate, parse_rate
from byteprophet.whole_files import make_directory, writing

VARIABLE = "BYTEPROPHET_STEP_UPDATES"
"""The updates at which rank 0 of a paced job is to say so, with commas between them."""

_DIRECTORY = "steps"
_STEP = re.compile(
    r"(?P<rate>[^@]+)@(?:(?P<seconds>\d{1,9}(?:\.\d{1,9})?)s|(?P<update>\d{1,9})i)", re.ASCII
)


@dataclass(frozen=True)
class Step:
    """A new rate of the workers' links: ``at_s`` after the roles' start, or at an update.

    Exactly one of the two is given; updates count from 0.
    """

    rate_bps: int
    at_s: float | None = None
    at_update: int | None = None

    def __str__(self) -> str:
        at = f"{self.at_s:g}s" if self.at_update is None else f"{self.at_update}i"
        return f"{format_rate(self.rate_bps)}@{at}"


def parse_step(text: str) -> Step:
    """``3gbit@20s`` or ``3gbit@8i``; UserError for anything else."""
    match = _STEP.fullmatch(text.strip())
    if match is None:
        raise UserError(f"--step {text!r}: use rate@when, e.g. 3gbit@20s, or 3gbit@8i in a bench")
    rate_bps = parse_rate(match["rate"], f"--step {text!r}:")
    if rate_bps is None:
        raise UserError(f"--step {text!r}: a step needs a rate, e.g. 10gbit")
    if match["update"] is not None:
        return Step(rate_bps, at_update=int(match["update"]))
    return Step(rate_bps, at_s=float(match["seconds"]))


def announce(update: int, environment: Mapping[str, str] = os.environ) -> None:
    """Rank 0 of a paced job begins ``update``: tells the launcher, if a step waits for that."""
    if str(update) in environment.get(VARIABLE, "").split(","):
        directory = Path(environment["BYTEPROPHET_RUN"]) / _DIRECTORY
        make_directory(directory)
        path = directory / f"update-{update}"
        with writing(path):
            path.touch()


def announced(update: int, run_directory: Path) -> bool:
    """Whether rank 0 has begun ``update``."""
    return (run_directory / _DIRECTORY / f"update-{update}").exists()
