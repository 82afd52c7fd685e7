"""Spans of the work of MXNet's engine: layers, gradients, updates, and the waits between them.

The script's thread runs ahead of the engine, so it cannot time this work itself. Instead, it
requests time stamps of arrays (``engine_stamps.py``), from which the observer makes these spans:

    forward      a layer: from when all its inputs were ready (the previous layer, its parameters,
                 the script's call) to its output
    wait         from the end of the previous layer until the layer's parameters are ready, if that
                 is later
    backward     a parameter: from the previous gradient, or the last layer, to its gradient
    update       a parameter: from its sum, or the previous update, to its new value
    iteration    from the last gradient of the previous iteration to its own last gradient; the
                 first one starts with its first span

Times include waits for a free thread of the engine. Gradients of one bundle of operations are
complete at the same time. A layer is a block with parameters that the script calls. A hybridized
block is one layer as a whole. A layer has the name of its first parameter.

A stamp may be late, because its thread had to wait for a CPU, and others may overtake it. So the
first stamp of an iteration begins the iteration, whether it is of a layer or of a gradient. If a
stamp of the previous iteration comes later, its work counts as complete at the end of that one.

Threads: the script's thread requests stamps, and the observer's takes them. A dictionary holds the
meaning of each stamp. Memory is bounded: if stamps are not taken in time, they are overwritten, and
their meanings are dropped.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from byteprophet.observe.span_log import SpanLog
from byteprophet.timeline.tables import Kind, Rows, Transfers

_RING = 1 << 16  # kRingStamps of native/plugin/stamps.h
_numbers = itertools.count(1)  # per process, as stamps may arrive after their EngineSpans is closed


class Stamps(Protocol):
    """The methods of ``EngineStamps`` that are used here."""

    def push(self, array: Any, number: int) -> None:
        """Request a stamp with ``number`` for when ``array`` is complete."""

    def take(self) -> Rows:
        """The stamps since the last call, in order of time."""


@dataclass(frozen=True)
class _Meaning:
    """The meaning of a stamp.

    A ``kind`` of None means that the parameter's sum has arrived. ``needs`` holds the names of a
    layer's parameters. ``called_ns`` is when the script called the layer.
    """

    kind: Kind | None
    name: str
    iteration: int
    needs: Sequence[str] = ()
    called_ns: int = 0


class EngineSpans:
    """A consumer of the observer that adds spans to ``log``.

    It must come before the consumer that writes them.
    """

    every = 0  # transfers are not needed

    def __init__(self, log: SpanLog, stamps: Stamps) -> None:
        self._log = log
        self._stamps = stamps
        self._meanings: dict[int, _Meaning] = {}
        self._oldest = next(_numbers)  # smaller numbers have no meaning any more
        self._abandoned = False
        self._done_ns = 0  # end of the last layer or gradient
        self._begun_ns = 0  # begin of the current iteration
        self._iteration = 0
        self._sums_ns: dict[str, int] = {}
        self._updates_ns: dict[str, int] = {}
        self._updated_ns = 0

    @property
    def on(self) -> bool:
        """Whether to request stamps."""
        return self._log.on and not self._abandoned

    def layer(self, parameters: Sequence[str], output: Any, called_ns: int) -> None:
        """Request a stamp for the ``output`` of a layer with ``parameters``, called just now."""
        iteration = max(1, self._log.iteration)
        self._ask(output, _Meaning(Kind.FORWARD, parameters[0], iteration, parameters, called_ns))

    def gradient(self, name: str, gradient: Any) -> None:
        """Request a stamp for a ``gradient`` of a backward pass."""
        self._ask(gradient, _Meaning(Kind.BACKWARD, name, max(1, self._log.iteration)))

    def sum(self, name: str, gradient: Any, iteration: int) -> None:
        """Request a stamp for the sum of all workers' gradients in ``gradient``."""
        self._ask(gradient, _Meaning(None, name, iteration))

    def update(self, name: str, parameter: Any, iteration: int) -> None:
        """Request a stamp for the new value of ``parameter`` after an update."""
        self._ask(parameter, _Meaning(Kind.UPDATE, name, iteration))

    def take(self, _transfers: Transfers | None = None) -> None:
        """Make spans from the stamps since the last call."""
        stamps = self._stamps.take().tolist()
        for number, time_ns in stamps:
            meaning = self._meanings.pop(number, None)
            if meaning is None:
                continue
            if meaning.kind is Kind.FORWARD or meaning.kind is Kind.BACKWARD:
                self._compute(meaning.kind, meaning, time_ns)
            elif meaning.kind is Kind.UPDATE:
                self._update(meaning, time_ns)
            else:
                self._sums_ns[meaning.name] = time_ns
        self._give_up(max((number for number, _ in stamps), default=0) - _RING)

    def close(self) -> None:
        """Make spans from the remaining stamps."""
        self.take()

    def abandon(self) -> None:
        """Request no more stamps."""
        self._abandoned = True
        self._meanings.clear()

    def _ask(self, array: Any, meaning: _Meaning) -> None:
        if self._abandoned:
            return
        number = next(_numbers)
        self._meanings[number] = meaning
        self._stamps.push(array, number)

    def _give_up(self, last: int) -> None:
        """Drop the meanings of stamps with numbers up to ``last``, which were overwritten."""
        given_up = [self._meanings.pop(number, None) for number in range(self._oldest, last + 1)]
        self._oldest = max(self._oldest, last + 1)
        if lost := sum(meaning is not None for meaning in given_up):
            self._log.lose(lost)

    def _compute(self, kind: Kind, meaning: _Meaning, time_ns: int) -> None:
        """Add the span of a layer or a gradient."""
        if meaning.iteration < self._iteration:
            self._add(kind, meaning, self._begun_ns, self._begun_ns)
            return
        free_ns = begin_ns = self._done_ns or time_ns
        if kind is Kind.FORWARD:
            free_ns = max(self._done_ns, meaning.called_ns)
            fresh_ns = max((self._updates_ns.get(name, 0) for name in meaning.needs), default=0)
            begin_ns = max(free_ns, fresh_ns)
        end_ns = max(time_ns, self._done_ns)
        begin_ns = min(begin_ns, end_ns)
        if meaning.iteration > self._iteration:
            self._begin_iteration(meaning.iteration, begin_ns)
        if begin_ns > free_ns:
            self._add(Kind.WAIT, meaning, free_ns, begin_ns)
        self._add(kind, meaning, begin_ns, end_ns)
        self._done_ns = end_ns

    def _begin_iteration(self, iteration: int, begin_ns: int) -> None:
        """Begin ``iteration`` at the end of the previous one if that was recorded.

        Otherwise, the iteration begins at ``begin_ns``, with its first span.
        """
        goes_on = iteration == self._iteration + 1 and self._begun_ns
        if goes_on:
            whole = _Meaning(Kind.ITERATION, "iteration", self._iteration)
            self._add(Kind.ITERATION, whole, self._begun_ns, self._done_ns)
        self._begun_ns = self._done_ns if goes_on else begin_ns
        self._iteration = iteration

    def _update(self, parameter: _Meaning, time_ns: int) -> None:
        begin_ns = max(self._sums_ns.pop(parameter.name, time_ns), self._updated_ns)
        self._add(Kind.UPDATE, parameter, min(begin_ns, time_ns), time_ns)
        self._updates_ns[parameter.name] = self._updated_ns = time_ns

    def _add(self, kind: Kind, meaning: _Meaning, begin_ns: int, end_ns: int) -> None:
        lane = self._log.lane("updates" if kind is Kind.UPDATE else "engine")
        self._log.add(kind, meaning.name, begin_ns, end_ns, iteration=meaning.iteration, lane=lane)
