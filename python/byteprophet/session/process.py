"""Manages the observer of this process. A framework's front calls it to join and leave a job.

``start`` makes the consumers that the environment asks for and, if there are any, an observer. A
process without consumers gets no thread and records nothing. ``stop`` ends the observer; after a
suspension, ``start`` makes a new one. The thread that calls BytePS' ``init`` and similar functions
calls both. A process without transfers may still record spans (``start_spans``), and so may a
process that is not part of a BytePS job (``observe``).

Recordings are also saved after SIGTERM, which the launcher sends. If the process has no handler of
its own for it, ours closes the observers and then restores the signal's effect. A process that only
lets itself be watched keeps the signal as it is.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from byteprophet._plugin import Plugin
from byteprophet.errors import UserError, one_line
from byteprophet.observe import live, recording
from byteprophet.observe.messages import MessageSource
from byteprophet.observe.observer import Consumer, NoTransfers, Observer
from byteprophet.observe.span_log import process_spans
from byteprophet.observe.windows import Windows
from byteprophet.profile.profiler import Stopwatch
from byteprophet.session.consumers import make_consumers
from byteprophet.session.job import SessionJob
from byteprophet.session.profiling import StartingProfile, given_profile
from byteprophet.tensor_names import parameter_of


@dataclass
class _Observed:
    """The job that this process has joined.

    ``observer`` is None if there are no consumers. ``records``: some of its consumers save events.
    """

    plugin: Plugin | None
    job: SessionJob
    environment: Mapping[str, str]
    observer: Observer | None = None
    records: bool = False


_names: dict[int, str] = {}
_observed: _Observed | None = None
_running: list[Observer] = []
_given: StartingProfile | None = None  # while the policy is given it


def declared(plugin: Plugin, names: Iterable[str]) -> None:
    """Notes the tensors declared to BytePS as ``names``. A gradient gets its parameter's name."""
    for name in names:
        number = plugin.tensor(name)
        if number >= 0:
            _names[number] = parameter_of(name) or name


def relabelled(plugin: Plugin, texts: Mapping[str, str]) -> None:
    """Gives tensors declared to BytePS other names in records: the values of ``texts``."""
    for name, text in texts.items():
        number = plugin.tensor(name)
        if number >= 0:
            _names[number] = text


def tensor_names() -> Mapping[int, str]:
    """The names in records of the tensors declared so far, by number."""
    return _names


def before_iteration() -> None:
    """Must be called before each iteration. The first ones adopt the job's starting profile."""
    global _given
    if _given is not None and not _given.give(_names):
        _given = None


def start(
    plugin: Plugin,
    rank: int,
    size: int,
    stopwatch: Stopwatch | None = None,
    adds_spans: Callable[[], Consumer] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Starts an observer if there are consumers. Exits with status 2 if a variable is invalid."""

    def consumers(job: SessionJob) -> list[Consumer]:
        global _given
        profile = given_profile(environment)
        _given = None if profile is None else StartingProfile(profile, plugin)
        return make_consumers(environment, plugin, job)

    job = _job(rank, size, environment, plugin.messages)
    job = replace(job, stopwatch=stopwatch, adds_spans=adds_spans)
    _start(plugin, job, environment, consumers)


def start_spans(
    rank: int,
    size: int,
    messages: MessageSource | None = None,
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Like ``start``, for a process without transfers. It may record spans and ``messages``."""

    def consumers(job: SessionJob) -> list[Consumer]:
        found = recording.make_consumers(environment, None, job)
        watched = live.make_consumer(environment, job, has_transfers=False)
        return found if watched is None else [*found, watched]

    _start(None, _job(rank, size, environment, messages), environment, consumers)


def joined() -> bool:
    """Whether this process has joined a job; if there are consumers, it then has an observer."""
    return _observed is not None


def stop() -> None:
    """Ends the job's observer, if there is one, after it has handed over all transfers."""
    global _observed
    observed, _observed = _observed, None
    if observed is not None and observed.observer is not None:
        end(observed.observer)


def start_recording() -> None:
    """Records from the next iteration on.

    Raises ``RuntimeError`` outside a job with a run directory.
    """
    if _observed is None or _observed.job.run_directory is None:
        raise RuntimeError(
            "byteprophet: start_recording(): there is no job with a run directory to save to: "
            "call it after init() in a job of byteprophet run; without BytePS there is record()"
        )
    begin = process_spans.iteration + 1
    consumers: list[Consumer] = []
    if _observed.records:
        process_spans.windows.begin(begin)
    else:
        windows = Windows()
        windows.begin(begin)
        consumers = recording.make_recorders(
            _observed.environment, _observed.plugin, _observed.job, windows
        )
        _observed.records = True
    if _observed.observer is None:
        _observed.observer = Observer(_observed.plugin or NoTransfers(), consumers)
        observe(_observed.observer)
    else:
        _observed.observer.add(consumers)
        _save_on_sigterm()


def stop_recording() -> None:
    """Stops recording at the end of the current iteration."""
    process_spans.windows.end(process_spans.iteration + 1)


def observe(observer: Observer, saves: bool = True) -> None:
    """Starts ``observer``. ``end`` ends it, and so does SIGTERM if it ``saves`` anything."""
    _running.append(observer)
    observer.start()
    if saves:
        _save_on_sigterm()


def end(observer: Observer) -> None:
    """Ends ``observer`` after it has handed over all transfers."""
    observer.close()
    if observer in _running:
        _running.remove(observer)


def _job(
    rank: int, size: int, environment: Mapping[str, str], messages: MessageSource | None
) -> SessionJob:
    run = environment.get("BYTEPROPHET_RUN")
    return SessionJob(rank, size, _names, Path(run) if run else None, messages=messages)


def _start(
    plugin: Plugin | None,
    job: SessionJob,
    environment: Mapping[str, str],
    make: Callable[[SessionJob], list[Consumer]],
) -> None:
    global _observed
    stop()
    _observed = _Observed(plugin, job, environment)
    try:
        consumers = make(job)
    except UserError as error:
        print(f"byteprophet: error: {one_line(str(error))}", file=sys.stderr)
        raise SystemExit(2) from None
    if consumers:
        _observed.records = recording.check(environment)
        _observed.observer = Observer(plugin or NoTransfers(), consumers)
        saves = any(not isinstance(one, live.LiveConsumer) for one in consumers)
        observe(_observed.observer, saves)


def _save_on_sigterm() -> None:
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminated)


def _terminated(signum: int, _frame: FrameType | None) -> None:
    for observer in _running:
        observer.close()
    signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)
