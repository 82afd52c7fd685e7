"""BYTEPROPHET_RECORD=1: saves all transfers, in the run directory's ``events/``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from byteprophet._plugin import Plugin
from byteprophet.errors import UserError
from byteprophet.observe.observer import Consumer, Job
from byteprophet.timeline.events import EventWriter, Origin, new_path
from byteprophet.timeline.tables import TRANSFERS, Transfers

VARIABLE = "BYTEPROPHET_RECORD"


class RecordingConsumer:
    """Writes transfers as they come, so that a process that is killed loses the last moment's.

    A job that is suspended and resumed has a file per life.
    """

    def __init__(self, run_directory: Path, role: str, plugin: Plugin, job: Job) -> None:
        path = new_path(run_directory, TRANSFERS, role)
        self._writer = EventWriter(path, TRANSFERS, Origin(role, job.rank))
        self._plugin = plugin
        self._names = job.names
        self._lost = plugin.lost_transfers()

    def take(self, transfers: Transfers) -> None:
        """Write ``transfers``."""
        lost = self._plugin.lost_transfers()
        if len(transfers):
            self._writer.write(transfers, self._names, lost - self._lost)
            self._lost = lost

    def close(self) -> None:
        """Complete the file."""
        self._writer.close()


def check(environment: Mapping[str, str]) -> bool:
    """Whether transfers are to be recorded; ``UserError`` for a wrong value."""
    value = environment.get(VARIABLE, "0")
    if value not in ("0", "1"):
        raise UserError(f"{VARIABLE}={value}: must be 0 or 1")
    return value == "1"


def directory(environment: Mapping[str, str]) -> Path:
    """The run directory to save to; ``UserError`` if there is none."""
    run = environment.get("BYTEPROPHET_RUN")
    if not run:
        raise UserError(
            f"{VARIABLE}=1: BYTEPROPHET_RUN must name the directory to save to, as byteprophet run "
            "has it"
        )
    return Path(run)


def wanted(environment: Mapping[str, str], plugin: Plugin, job: Job) -> Consumer | None:
    """The consumer, if asked for."""
    if not check(environment):
        return None
    role = environment.get("BYTEPROPHET_ROLE") or f"worker-{job.rank}"
    return RecordingConsumer(directory(environment), role, plugin, job)
