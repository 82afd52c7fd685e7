"""BYTEPROPHET_RECORD=1: saves all transfers, in the run directory's ``events/``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from byteprophet._plugin import Plugin
from byteprophet.errors import UserError
from byteprophet.observe.observer import Consumer, Job
from byteprophet.timeline.transfers import Transfers, Writer

VARIABLE = "BYTEPROPHET_RECORD"
_ROWS = 1 << 16  # written at once


class RecordingConsumer:
    """Writes transfers as they come; a job that is suspended and resumed has a file per life."""

    def __init__(self, directory: Path, job: Job) -> None:
        path = directory / f"transfers-{job.rank}.parquet"
        life = 1
        while path.exists():
            life += 1
            path = directory / f"transfers-{job.rank}.{life}.parquet"
        self._writer = Writer(path, job.rank)
        self._names = job.names
        self._kept: list[Transfers] = []
        self._rows = 0

    def take(self, transfers: Transfers) -> None:
        """Keep ``transfers``, and write them when there are many."""
        self._kept.append(transfers)
        self._rows += len(transfers)
        if self._rows >= _ROWS:
            self._write()

    def close(self) -> None:
        """Complete the file."""
        self._write()
        self._writer.close()

    def _write(self) -> None:
        if self._rows:
            self._writer.write(np.concatenate(self._kept), self._names)
        self._kept, self._rows = [], 0


def check(environment: Mapping[str, str]) -> bool:
    """Whether transfers are to be recorded; ``UserError`` for a wrong value."""
    value = environment.get(VARIABLE, "0")
    if value not in ("0", "1"):
        raise UserError(f"{VARIABLE}={value}: must be 0 or 1")
    return value == "1"


def wanted(environment: Mapping[str, str], _plugin: Plugin, job: Job) -> Consumer | None:
    """The consumer, if asked for."""
    if not check(environment):
        return None
    if job.run_directory is None:
        raise UserError(
            f"{VARIABLE}=1: BYTEPROPHET_RUN must name the directory to save to, as byteprophet run "
            "has it"
        )
    return RecordingConsumer(job.run_directory / "events", job)
