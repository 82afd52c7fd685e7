"""Saves the spans of a log to ``events/spans-<role>.arrows``.

The observer calls the consumer every 0.25 s. A killed process loses the spans since the last call.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from byteprophet.observe.span_log import Span, SpanLog
from byteprophet.timeline.events import EventWriter, Origin, new_path
from byteprophet.timeline.tables import SPAN, SPANS, Rows, Transfers

_BATCH = 4096  # rows; converting them holds the interpreter's lock for a few milliseconds


class SpanConsumer:
    """Writes the spans of ``log`` until ``close``, which also ends their recording."""

    every = 0  # transfers are not needed

    def __init__(self, run_directory: Path, role: str, rank: int, log: SpanLog) -> None:
        path = new_path(run_directory, SPANS, role)
        self._run_directory, self._origin = run_directory, Origin(role, rank)
        self._writer = EventWriter(path, SPANS, self._origin)
        self._log = log
        self._numbers: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._lost = log.lost()

    def take(self, _transfers: Transfers) -> None:
        """Writes the spans that were added since the last call."""
        self._write()

    def close(self) -> None:
        """Stops recording, writes the remaining spans and completes the file."""
        self.abandon()
        self._write()
        self._writer.close()
        self._log.processors.write(self._run_directory, self._origin)

    def abandon(self) -> None:
        """Stops recording."""
        self._log.stop()

    def _write(self) -> None:
        while spans := self._log.take(_BATCH):
            self._writer.write(self._rows(spans), self._names)
        lost = self._log.lost()
        if lost != self._lost:
            # These spans were lost after the rows just written, so the loss precedes the next rows.
            self._writer.write(np.zeros(0, SPAN), {}, lost - self._lost)
            self._lost = lost

    def _rows(self, spans: Sequence[tuple[int | str, ...]]) -> Rows:
        rows = np.zeros(len(spans), SPAN)
        for column, values in zip(Span._fields, zip(*spans, strict=True), strict=True):
            rows[column] = [self._number(str(v)) for v in values] if column == "name" else values
        return rows

    def _number(self, name: str) -> int:
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self._numbers)
            self._names[number] = name
        return number
