"""The observer of this process: what a framework's front calls when it joins and leaves the job.

``start`` makes the consumers that the environment asks for and, if there are any, an observer; a
process that wants none gets no thread and records nothing. ``stop`` ends it; after a suspension the
job is observed anew. Both are called by the thread that calls BytePS' ``init`` and its like. A
process that has no transfers to observe may still record spans (``start_spans``), and so may what
is no job of BytePS (``observe``).

Also after SIGTERM, which the launcher sends, what was recorded is saved: where the process has no
handler of its own for it, ours closes the observers and then lets the signal do what it did.
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
from byteprophet.errors import UserError
from byteprophet.observe import recording
from byteprophet.observe.messages import MessageSource
from byteprophet.observe.observer import Consumer, Job, NoTransfers, Observer
from byteprophet.observe.span_log import process_spans
from byteprophet.observe.wanted import make_consumers
from byteprophet.observe.windows import Windows
from byteprophet.profile import saving
from byteprophet.profile.model import Profile
from byteprophet.profile.profiler import Stopwatch

_GRADIENT = "Gradient."


@dataclass
class _Observed:
    """The job that this process has joined.

    ``observer`` is None where nobody wants one; ``records``: some of its consumers save events.
    """

    plugin: Plugin | None
    job: Job
    environment: Mapping[str, str]
    observer: Observer | None = None
    records: bool = False


_names: dict[int, str] = {}
_observed: _Observed | None = None
_running: list[Observer] = []
_given: Profile | None = None  # to be handed to the policy with the next iteration


def declared(plugin: Plugin, names: Iterable[str]) -> None:
    """Tensors were declared to BytePS under ``names``; a gradient goes by its parameter's name."""
    for name in names:
        number = plugin.tensor(name)
        if number >= 0:
            _names[number] = name.removeprefix(_GRADIENT)


def before_iteration(plugin: Plugin) -> None:
    """An iteration is about to begin: the first adopts the profile that the job starts from."""
    global _given
    if _given is not None:
        given, _given = _given, None
        saving.stage(given, plugin, _names)


def start(
    plugin: Plugin,
    rank: int,
    size: int,
    stopwatch: Stopwatch | None = None,
    adds_spans: Callable[[], Consumer] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Observe from now on, if anybody wants to. Exits with status 2 for a wrong variable."""

    def consumers(job: Job) -> list[Consumer]:
        global _given
        _given = saving.given_profile(environment)
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
    """As ``start``, in a process without transfers: it may record spans, and ``messages``."""

    def consumers(job: Job) -> list[Consumer]:
        return recording.wanted(environment, None, job)

    _start(None, _job(rank, size, environment, messages), environment, consumers)


def stop() -> None:
    """Hand over what is left and end the job's observer, if there is one."""
    global _observed
    observed, _observed = _observed, None
    if observed is not None and observed.observer is not None:
        end(observed.observer)


def start_recording() -> None:
    """Record from the next iteration on. ``RuntimeError`` outside a job with a run directory."""
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
        consumers = recording.make(_observed.environment, _observed.plugin, _observed.job, windows)
        _observed.records = True
    if _observed.observer is None:
        _observed.observer = Observer(_observed.plugin or NoTransfers(), consumers)
        observe(_observed.observer)
    else:
        _observed.observer.add(consumers)


def stop_recording() -> None:
    """Record the iteration under way to its end, and none that begins later."""
    process_spans.windows.end(process_spans.iteration + 1)


def observe(observer: Observer) -> None:
    """Start ``observer``; it is ended by ``end``, or by SIGTERM."""
    _running.append(observer)
    observer.start()
    _save_on_sigterm()


def end(observer: Observer) -> None:
    """Hand over what is left and end ``observer``."""
    observer.close()
    if observer in _running:
        _running.remove(observer)


def _job(
    rank: int, size: int, environment: Mapping[str, str], messages: MessageSource | None
) -> Job:
    run = environment.get("BYTEPROPHET_RUN")
    return Job(rank, size, _names, Path(run) if run else None, messages=messages)


def _start(
    plugin: Plugin | None,
    job: Job,
    environment: Mapping[str, str],
    make: Callable[[Job], list[Consumer]],
) -> None:
    global _observed
    stop()
    _observed = _Observed(plugin, job, environment)
    try:
        consumers = make(job)
    except UserError as error:
        print(f"byteprophet: error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    if consumers:
        _observed.records = recording.check(environment)
        _observed.observer = Observer(plugin or NoTransfers(), consumers)
        observe(_observed.observer)


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
