"""With BYTEPROPHET_RECORD=1, saves transfers, messages and spans in the run's ``events/``.

``BYTEPROPHET_RECORD_STEPS=10:20`` restricts all of them to these iterations (``windows.py``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from byteprophet.errors import UserError
from byteprophet.observe.messages import MessageConsumer
from byteprophet.observe.observer import Consumer, Job
from byteprophet.observe.span_log import process_spans
from byteprophet.observe.span_recording import SpanConsumer
from byteprophet.observe.windows import Windows
from byteprophet.runtime_settings import flag
from byteprophet.timeline.events import LIFE, EventWriter, Origin, new_path
from byteprophet.timeline.tables import TRANSFERS, Transfers
from byteprophet.whole_files import OneWarning

VARIABLE = "BYTEPROPHET_RECORD"
STEPS = "BYTEPROPHET_RECORD_STEPS"
_ROLE = "BYTEPROPHET_ROLE"
_LATE = 2  # iterations after which every transfer of an iteration has completed
_FIRST_PACE = 16  # iterations between two takes, until known: assumes 16 ms or more each
_PACES = 4  # how many of the latest takes in which iterations began are remembered


class TransferState(Protocol):
    """The part of ``_plugin.Plugin`` that recording needs, in addition to the observer's."""

    def iteration(self) -> int:
        """The number of the current iteration."""

    def lost_transfers(self) -> int:
        """The number of transfers that were recorded and lost so far."""


class RecordingConsumer:
    """Writes transfers as they come, so that a killed process loses only the latest ones.

    A job that is suspended and resumed has one file per life. Transfers outside ``windows`` are
    left out. After the last window, nothing is recorded for this consumer any more.
    """

    def __init__(
        self, run_directory: Path, role: str, plugin: TransferState, job: Job, windows: Windows
    ) -> None:
        path = new_path(run_directory, TRANSFERS, role)
        self._writer = EventWriter(path, TRANSFERS, Origin(role, job.rank))
        self._plugin = plugin
        self._names = job.names
        self._windows = windows
        self._lost = plugin.lost_transfers()

    @property
    def every(self) -> int:
        """1 while there may be something to write, else 0."""
        return int(not self._windows.over(self._plugin.iteration() - _LATE))

    def take(self, transfers: Transfers) -> None:
        """Writes those of ``transfers`` that are in a window."""
        lost = self._plugin.lost_transfers()
        wanted = transfers[self._windows.mask(transfers["iteration"])]
        if len(wanted):
            self._writer.write(wanted, self._names, lost - self._lost)
            self._lost = lost

    def close(self) -> None:
        """Completes the file."""
        self._writer.close()


class Nearness:
    """Tells whether messages until the next call may belong to a transfer in a window.

    Any number of iterations may begin between two calls. So this looks ahead by twice the largest
    number that began between the latest calls. Calls between which no iteration began do not count.
    """

    def __init__(self, iteration: Callable[[], int], windows: Windows) -> None:
        self._iteration = iteration
        self._windows = windows
        self._last = 0
        self._paces = deque([_FIRST_PACE], maxlen=_PACES)

    def __call__(self) -> bool:
        """Must be called at each take."""
        iteration = self._iteration()
        if 0 < self._last < iteration:
            self._paces.append(iteration - self._last)
        self._last = iteration
        ahead = 2 * max(self._paces)
        first, last = iteration - _LATE + 1, iteration + ahead
        return any(number in self._windows for number in range(first, last + 1))


def check(environment: Mapping[str, str]) -> bool:
    """Whether to record. Raises ``UserError`` if one of the two variables has a wrong value."""
    on = flag(environment, VARIABLE)
    Windows.parse(environment.get(STEPS, ""), STEPS)
    return on


def directory(environment: Mapping[str, str]) -> Path:
    """The run directory to save to. Raises ``UserError`` if there is none."""
    run = environment.get("BYTEPROPHET_RUN")
    if not run:
        raise UserError(
            f"{VARIABLE}=1: BYTEPROPHET_RUN must name the directory to save to; byteprophet run "
            "sets it"
        )
    return Path(run)


def role_in(environment: Mapping[str, str]) -> str | None:
    """The role's name, which becomes part of file names; None if the environment has none.

    Raises ``UserError`` if it cannot be part of a file name.
    """
    role = environment.get(_ROLE) or None
    if role is not None and (not role.isprintable() or "/" in role or LIFE in role):
        raise UserError(f"{_ROLE}={role}: must be a name like worker-0, without '/' and '{LIFE}'")
    return role


def make_consumers(
    environment: Mapping[str, str], plugin: TransferState | None, job: Job
) -> list[Consumer]:
    """The consumers that record transfers, messages and spans, if the environment asks for them."""
    if not check(environment):
        return []
    windows = Windows.parse(environment.get(STEPS, ""), STEPS)
    return make_recorders(environment, plugin, job, windows)


def make_recorders(
    environment: Mapping[str, str], plugin: TransferState | None, job: Job, windows: Windows
) -> list[Consumer]:
    """Consumers that record the iterations in ``windows``. Transfers need a plug-in.

    Raises ``UserError`` if there is no run directory or the role's name is not valid. If a file
    cannot be created, this only warns, because a process may be in the middle of training.
    """
    run_directory = directory(environment)
    role = role_in(environment) or f"worker-{job.rank}"

    def spans() -> SpanConsumer:
        consumer = SpanConsumer(run_directory, role, job.rank, process_spans)
        process_spans.start(windows, plugin.iteration() if plugin else process_spans.iteration)
        return consumer

    makers: list[Callable[[], Consumer]] = [] if job.adds_spans is None else [job.adds_spans]
    makers.append(spans)
    if plugin is not None:
        source = plugin
        makers.append(lambda: RecordingConsumer(run_directory, role, source, job, windows))
    if job.messages is not None:
        messages = job.messages
        near = Nearness(plugin.iteration if plugin else lambda: process_spans.iteration, windows)
        makers.append(lambda: MessageConsumer(run_directory, role, job.rank, messages, near))
    consumers: list[Consumer] = []
    for make_one in makers:
        with OneWarning("the job goes on without it").instead():
            consumers.append(make_one())
    return consumers
