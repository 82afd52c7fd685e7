"""The observer of this process: what a framework's front calls when it joins and leaves the job.

``start`` makes the consumers that the environment asks for and, if there are any, an observer; a
process that wants none gets no thread and records nothing. ``stop`` ends it; after a suspension the
job is observed anew. Both are called by the thread that calls BytePS' ``init`` and its like.

Also after SIGTERM, which the launcher sends, what was recorded is saved: where the process has no
handler of its own for it, ours closes the observer and then lets the signal do what it did.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import FrameType

from byteprophet._plugin import Plugin
from byteprophet.errors import UserError
from byteprophet.observe.observer import Job, Observer
from byteprophet.observe.wanted import make_consumers
from byteprophet.profile import saving
from byteprophet.profile.model import Profile
from byteprophet.profile.profiler import Stopwatch

_GRADIENT = "Gradient."

_names: dict[int, str] = {}
_observer: Observer | None = None
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
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Observe from now on, if anybody wants to. Exits with status 2 for a wrong variable."""
    global _observer, _given

    stop()
    run = environment.get("BYTEPROPHET_RUN")
    job = Job(rank, size, _names, Path(run) if run else None, stopwatch)
    try:
        _given = saving.given_profile(environment)
        consumers = make_consumers(environment, plugin, job)
    except UserError as error:
        print(f"byteprophet: error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    if consumers:
        _observer = Observer(plugin, consumers)
        _observer.start()
        _save_on_sigterm()


def stop() -> None:
    """Hand over what is left and end the observer, if there is one."""
    global _observer
    if _observer is not None:
        _observer.close()
        _observer = None


def _save_on_sigterm() -> None:
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminated)


def _terminated(signum: int, _frame: FrameType | None) -> None:
    stop()
    signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)
