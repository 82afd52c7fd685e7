"""The observer: one thread per worker process that hands the plug-in's recordings to consumers.

Threads. The training thread calls ``start``, ``add`` and ``close``. Consumers are called only in
the observer's own thread, one after the other. This includes their last transfers and their
``close``, so they need no lock for their own data. The thread is a daemon, so it does not keep the
process alive. ``close`` ends it before the interpreter ends.

If a consumer raises an exception, a warning names it and it is not called again, because a failing
observer must not end a job.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from byteprophet.errors import described, warn
from byteprophet.timeline.tables import TRANSFER, Transfers

if TYPE_CHECKING:
    from byteprophet.observe.messages import MessageSource

PERIOD_S = 0.25
_CLOSE_S = 5.0
_ADD_S = 5.0


class Consumer(Protocol):
    """Receives transfers.

    A consumer may have an attribute ``every``: n if it needs only every n-th iteration, 0 if it
    needs none. Without it, the consumer needs all iterations. The observer reads the attribute
    after each ``take``. A consumer may get more than it needs if others need more.

    A consumer may have a method ``abandon()``, which is called once after the consumer has failed.
    It switches off whatever records only for this consumer, and must not raise.
    """

    def take(self, transfers: Transfers) -> None:
        """Takes the transfers completed since the last call, in order of completion; maybe none."""

    def close(self) -> None:
        """Called at exit, shutdown or suspend, after the last ``take``."""


class TransferSource(Protocol):
    """The part of ``_plugin.Plugin`` that the observer needs."""

    def record_transfers(self, every: int) -> None:
        """Records every ``every``-th iteration; 0: none."""

    def take_transfers(self) -> Transfers:
        """Returns the transfers completed since the last call."""


class NoTransfers:
    """The source for a process that sends nothing, or nothing that is scheduled."""

    def record_transfers(self, every: int) -> None:
        """Does nothing."""

    def take_transfers(self) -> Transfers:
        """Returns no transfers."""
        return np.zeros(0, TRANSFER)


@dataclass(frozen=True)
class Job:
    """What consumers know about the process that they observe.

    ``messages`` records ps-lite messages in a process that talks to servers. If spans are recorded,
    ``adds_spans`` makes a consumer that adds spans. ``names`` are the names of tensors by number
    (``key >> 16``); it grows as tensors are declared. A gradient has its parameter's name.
    ``run_directory`` is None if no launcher made one.
    """

    rank: int
    size: int
    names: Mapping[int, str]
    run_directory: Path | None
    messages: MessageSource | None = None
    adds_spans: Callable[[], Consumer] | None = None


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
        self._recording = threading.Event()  # set when all that consumers need is recorded
        self._thread = threading.Thread(target=self._run, name="byteprophet-observer", daemon=True)

    def start(self) -> None:
        """Starts recording and the thread."""
        self._set_recording()
        self._thread.start()

    def add(self, consumers: Sequence[Consumer]) -> None:
        """Adds consumers. When this returns, the transfers that they need are being recorded."""
        self._recording.clear()
        self._consumers.extend(consumers)
        self._wake.set()
        self._recording.wait(_ADD_S)

    def close(self) -> None:
        """Hands over the remaining transfers, closes the consumers and ends the thread.

        Further calls do nothing.
        """
        self._ending.set()
        self._wake.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_S)
            if self._thread.is_alive():
                warn(
                    f"the observer did not end within {_CLOSE_S:g} s; what it saves may be missing"
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
        """Records as often as the most demanding consumer needs."""
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
            warn(f"{type(consumer).__name__} stopped observing: {described(error)}")
            if abandon := getattr(consumer, "abandon", None):
                abandon()
