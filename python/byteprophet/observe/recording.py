"""BYTEPROPHET_RECORD=1: saves transfers, messages and spans, in the run directory's ``events/``.

``BYTEPROPHET_RECORD_STEPS=10:20`` restricts all to these iterations (``windows.py``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from byteprophet._plugin import Plugin
from byteprophet.errors import UserError
from byteprophet.observe.messages import MessageConsumer
from byteprophet.observe.observer import Consumer, Job
from byteprophet.observe.span_log import process_spans
from byteprophet.observe.span_recording import SpanConsumer
from byteprophet.observe.windows import Windows
from byteprophet.runtime_settings import flag
from byteprophet.timeline.events import EventWriter, Origin, new_path
from byteprophet.timeline.tables import TRANSFERS, Transfers

VARIABLE = "BYTEPROPHET_RECORD"
STEPS = "BYTEPROPHET_RECORD_STEPS"
_LATE = 2  # iterations: later than that no transfer completes
_FIRST_PACE = 16  # iterations between two takes, until it is known: they take 16 ms or more
_PACES = 4  # the latest takes in which iterations began


class RecordingConsumer:
    """Writes transfers as they come, so that a process that is killed loses the last moment's.

    A job that is suspended and resumed has a file per life. What is outside ``windows`` is left
    out, and once they are over nothing is recorded for this consumer any more.
    """

    def __init__(
        self, run_directory: Path, role: str, plugin: Plugin, job: Job, windows: Windows
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
        """Write those of ``transfers`` that are wanted."""
        lost = self._plugin.lost_transfers()
        wanted = transfers[self._windows.mask(transfers["iteration"])]
        if len(wanted):
            self._writer.write(wanted, self._names, lost - self._lost)
            self._lost = lost

    def close(self) -> None:
        """Complete the file."""
        self._writer.close()


class Nearness:
    """Whether messages, up to the next call, may be those of a transfer that is wanted.

    Any number of iterations may begin between two calls: it looks ahead by twice as many as began
    between any of the last ones. Pauses, in which none began, do not count.
    """

    def __init__(self, iteration: Callable[[], int], windows: Windows) -> None:
        self._iteration = iteration
        self._windows = windows
        self._last = 0
        self._paces = deque([_FIRST_PACE], maxlen=_PACES)

    def __call__(self) -> bool:
        """Call it at each take."""
        iteration = self._iteration()
        if 0 < self._last < iteration:
            self._paces.append(iteration - self._last)
        self._last = iteration
        ahead = 2 * max(self._paces)
        first, last = iteration - _LATE + 1, iteration + ahead
        return any(number in self._windows for number in range(first, last + 1))


def check(environment: Mapping[str, str]) -> bool:
    """Whether to record; ``UserError`` for a wrong value of one of the two variables."""
    on = flag(environment, VARIABLE)
    Windows.parse(environment.get(STEPS, ""), STEPS)
    return on


def directory(environment: Mapping[str, str]) -> Path:
    """The run directory to save to; ``UserError`` if there is none."""
    run = environment.get("BYTEPROPHET_RUN")
    if not run:
        raise UserError(
            f"{VARIABLE}=1: BYTEPROPHET_RUN must name the directory to save to, as byteprophet run "
            "has it"
        )
    return Path(run)


def wanted(environment: Mapping[str, str], plugin: Plugin | None, job: Job) -> list[Consumer]:
    """The consumers of transfers and spans, if asked for."""
    if not check(environment):
        return []
    windows = Windows.parse(environment.get(STEPS, ""), STEPS)
    return make(environment, plugin, job, windows)


def make(
    environment: Mapping[str, str], plugin: Plugin | None, job: Job, windows: Windows
) -> list[Consumer]:
    """Consumers that record ``windows``; without a plug-in there are no transfers.

    ``UserError`` if there is no run directory.
    """
    run_directory = directory(environment)
    role = environment.get("BYTEPROPHET_ROLE") or f"worker-{job.rank}"
    consumers: list[Consumer] = [] if job.adds_spans is None else [job.adds_spans()]
    consumers.append(SpanConsumer(run_directory, role, job.rank, process_spans))
    process_spans.start(windows, plugin.iteration() if plugin else process_spans.iteration)
    if plugin is not None:
        consumers.append(RecordingConsumer(run_directory, role, plugin, job, windows))
    if job.messages is not None:
        near = Nearness(plugin.iteration if plugin else lambda: process_spans.iteration, windows)
        consumers.append(MessageConsumer(run_directory, role, job.rank, job.messages, near))
    return consumers
