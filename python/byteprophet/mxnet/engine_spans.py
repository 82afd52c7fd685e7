"""Spans of what MXNet's engine did: layers, gradients, updates, and the waits between them.

The script's thread runs ahead of the engine, so its clock says nothing of them. It asks for stamps
of arrays (``engine_stamps.py``) instead, and the observer makes spans of these as they come:

    forward      a layer: from when what it reads was there (the layer before, its parameters, the
                 script's call) to its output
    wait         from the layer before to the layer's parameters, where those came later
    backward     a parameter: from the gradient complete before, or the last layer, to this one
    update       a parameter: from its sum, or the update before, to its new value
    iteration    from the last gradient of the one before to its own; the first from its begin

Times include what an operation waited for a free thread of the engine. Gradients of one bundle of
operations are complete at once. A layer is a block with parameters that the script calls, a
hybridized one as a whole; it goes by the name of its first parameter.

A stamp is late by what its own thread waited for a processor, and others may overtake it: the first
one of an iteration begins it, be it of a layer or of a gradient, and a late one of the iteration
before was complete at the end of that.

Threads: the script's asks, the observer's takes; a dictionary hands over what each stamp means.
Memory is bounded: stamps that nobody took in time were overwritten, and what they mean is given up.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from byteprophet.observe.span_log import SpanLog
from byteprophet.timeline.tables import Kind, Rows, Transfers

_RING = 1 << 16  # kRingStamps of native/plugin/stamps.h
_numbers = itertools.count(1)  # of the process: a stamp may come when its EngineSpans is closed


class Stamps(Protocol):
    """What is needed of ``EngineStamps``."""

    def push(self, array: Any, number: int) -> None:
        """Have ``number`` stamped when ``array`` is complete."""

    def take(self) -> Rows:
        """Stamps since the last call, in order of time."""


@dataclass(frozen=True)
class _Meaning:
    """Of a stamp. ``kind`` None: the parameter's sum is there. ``needs``: a layer's parameters."""

    kind: Kind | None
    name: str
    iteration: int
    needs: Sequence[str] = ()
    called_ns: int = 0


class EngineSpans:
    """A consumer of the observer that adds spans to ``log``; before the one that writes them."""

    every = 0  # transfers are not needed

    def __init__(self, log: SpanLog, stamps: Stamps) -> None:
        self._log = log
        self._stamps = stamps
        self._meanings: dict[int, _Meaning] = {}
        self._oldest = next(_numbers)  # no number below has a meaning
        self._abandoned = False
        self._done_ns = 0  # the last layer or gradient
        self._begun_ns = 0  # the iteration of that
        self._iteration = 0
        self._sums_ns: dict[str, int] = {}
        self._updates_ns: dict[str, int] = {}
        self._updated_ns = 0

    @property
    def on(self) -> bool:
        """Whether to ask for stamps."""
        return self._log.on and not self._abandoned

    def layer(self, parameters: Sequence[str], output: Any, called_ns: int) -> None:
        """A layer with ``parameters`` was called, and ``output`` will be there."""
        iteration = max(1, self._log.iteration)
        self._ask(output, _Meaning(Kind.FORWARD, parameters[0], iteration, parameters, called_ns))

    def gradient(self, name: str, gradient: Any) -> None:
        """A backward pass was asked for, and ``gradient`` will be there."""
        self._ask(gradient, _Meaning(Kind.BACKWARD, name, max(1, self._log.iteration)))

    def sum(self, name: str, gradient: Any, iteration: int) -> None:
        """The sum of all workers' gradients will be there."""
        self._ask(gradient, _Meaning(None, name, iteration))

    def update(self, name: str, parameter: Any, iteration: int) -> None:
        """An update was asked for, and the new value will be there."""
        self._ask(parameter, _Meaning(Kind.UPDATE, name, iteration))

    def take(self, _transfers: Transfers | None = None) -> None:
        """Make spans of the stamps since the last call."""
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
        """Make spans of what is left."""
        self.take()

    def abandon(self) -> None:
        """Ask for no more stamps."""
        self._abandoned = True
        self._meanings.clear()

    def _ask(self, array: Any, meaning: _Meaning) -> None:
        if self._abandoned:
            return
        number = next(_numbers)
        self._meanings[number] = meaning
        self._stamps.push(array, number)

    def _give_up(self, last: int) -> None:
        """Stamps with numbers up to ``last`` do not come any more."""
        given_up = [self._meanings.pop(number, None) for number in range(self._oldest, last + 1)]
        self._oldest = max(self._oldest, last + 1)
        if lost := sum(meaning is not None for meaning in given_up):
            self._log.lose(lost)

    def _compute(self, kind: Kind, meaning: _Meaning, time_ns: int) -> None:
        """A layer or a gradient."""
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
        """At the end of the one before, if that was recorded; else where its first span begins."""
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
