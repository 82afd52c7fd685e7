"""The observer: one thread per worker process that hands what the plug-in records to consumers.

Threads. ``start``, ``add`` and ``close``: the thread that trains. Consumers are called in the
observer's own thread only, one after the other, also for their last transfers and their
``close``; so they need no lock for what is theirs. The thread is a daemon, so that it keeps no
process alive, and it is ended by ``close`` before the interpreter is.

A consumer that raises is named on standard error, once, and not called again: what is only observed
must not end a job.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from byteprophet.timeline.tables import TRANSFER, Transfers

if TYPE_CHECKING:
    from byteprophet.observe.messages import MessageSource
    from byteprophet.profile.model import Profile
    from byteprophet.profile.profiler import Stopwatch

PERIOD_S = 0.25
_CLOSE_S = 5.0
_ADD_S = 5.0


class Consumer(Protocol):
    """Who learns from transfers.

    It may have an attribute ``every``: n if it needs every n-th iteration only, 0 for none at
    all; without, it needs all. The observer looks after each ``take``; others may ask for more.

    It may have a method ``abandon()``, called when it has failed and is called no more: it turns
    off what records for it alone, and does not fail.
    """

    def take(self, transfers: Transfers) -> None:
        """The transfers completed since the last call, maybe none, in order of completion."""

    def close(self) -> None:
        """Nothing more comes: at exit, shutdown, suspend."""


class TransferSource(Protocol):
    """What the observer needs of ``_plugin.Plugin``."""

    def record_transfers(self, every: int) -> None:
        """Record every so many iterations, or none (0)."""

    def take_transfers(self) -> Transfers:
        """What was completed since the last call."""


class NoTransfers:
    """The source of a process that sends nothing, or nothing that is scheduled."""

    def record_transfers(self, every: int) -> None:
        """There are none."""

    def take_transfers(self) -> Transfers:
        """None."""
        return np.zeros(0, TRANSFER)


@dataclass
class Findings:
    """What consumers found out, for those behind them in the list; the observer's thread's own."""

    profile: Profile | None = None


@dataclass(frozen=True)
class Job:
    """What consumers are told of the process they observe.

    ``stopwatch`` measures forward passes, where the front has one. ``messages`` records ps-lite's,
    in a process that talks to servers. ``adds_spans`` makes a consumer that does, if spans are
    recorded.
    ``names``: of tensors, by number (``key >> 16``); it grows as tensors are declared. A gradient
    has its parameter's name. ``run_directory`` is None where no launcher made one.
    """

    rank: int
    size: int
    names: Mapping[int, str]
    run_directory: Path | None
    stopwatch: Stopwatch | None = None
    messages: MessageSource | None = None
    adds_spans: Callable[[], Consumer] | None = None
    found: Findings = field(default_factory=Findings)


class Observer:
    """Hands transfers from ``source`` to ``consumers``, from ``start`` to ``close``."""

    def __init__(
        self, source: TransferSource, consumers: Sequence[Consumer], period_s: float = PERIOD_S
    ) -> None:
        self._source = source
        self._consumers = list(consumers)
        self._period_s = period_s
        self._every: int | None = None
        self._ending = threading.Event()
        self._wake = threading.Event()
        self._recording = threading.Event()  # what all consumers need is recorded
        self._thread = threading.Thread(target=self._run, name="byteprophet-observer", daemon=True)

    def start(self) -> None:
        """Record, and begin to hand over."""
        self._set_recording()
        self._thread.start()

    def add(self, consumers: Sequence[Consumer]) -> None:
        """More consumers, from now on; what they need is recorded when this returns."""
        self._recording.clear()
        self._consumers.extend(consumers)
        self._wake.set()
        self._recording.wait(_ADD_S)

    def close(self) -> None:
        """Hand over what is left, close the consumers, end; again: nothing happens."""
        self._ending.set()
        self._wake.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_S)
            if self._thread.is_alive():
                print(
                    f"byteprophet: warning: the observer did not end within {_CLOSE_S:g} s; "
                    "what it saves may be missing",
                    file=sys.stderr,
                )

    def _run(self) -> None:
        while True:
            self._wake.wait(self._period_s)
            self._wake.clear()
            if self._ending.is_set():
                break
            self._hand_over()
            self._set_recording()
            self._recording.set()
        self._hand_over()
        self._source.record_transfers(0)
        for consumer in list(self._consumers):
            self._call(consumer, consumer.close)

    def _hand_over(self) -> None:
        transfers = self._source.take_transfers()
        for consumer in list(self._consumers):
            self._call(consumer, lambda consumer=consumer: consumer.take(transfers))  # type: ignore[misc]

    def _set_recording(self) -> None:
        """Record what the most demanding consumer needs."""
        wanted = [getattr(consumer, "every", 1) for consumer in self._consumers]
        every = min((n for n in wanted if n > 0), default=0)
        if every != self._every:
            self._every = every
            self._source.record_transfers(every)

    def _call(self, consumer: Consumer, method: Callable[[], None]) -> None:
        try:
            method()
        except Exception as error:  # noqa: BLE001 (whatever it is, the job goes on)
            if consumer in self._consumers:
                self._consumers.remove(consumer)
            print(
                f"byteprophet: warning: {type(consumer).__name__} stopped observing: "
                f"{type(error).__name__}: {error}",
                file=sys.stderr,
            )
            if abandon := getattr(consumer, "abandon", None):
                abandon()
