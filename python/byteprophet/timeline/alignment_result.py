"""Clocks of a job's machines, aligned: how far each is off, how sure that is, times converted.

    clock of m at the reference's time t:   t + offset_m + drift_m * (t - reference_ns)

Roles on one machine share its clock and are one machine here. ``alignment.align`` makes these.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from byteprophet.errors import UserError
from byteprophet.timeline.alignment_evidence import Int64s
from byteprophet.timeline.linear_program import Floats

SCHEMA = 1

Interval = tuple[int | None, int | None]
"""Low and high in ns; None: no evidence is a bound on that side."""


@dataclass(frozen=True)
class MachineClock:
    """One machine's clock against the reference's.

    It is ``offset_ns`` ahead at the alignment's ``reference_ns``, and gains ``drift_ppm`` µs a
    second. An event's true time is from low to high of ``interval_ns`` after what ``to_reference``
    says, all over the recording, and of ``intervals_ns`` at its begin, middle and end, which are
    ``local_ns`` on this clock. ``causes`` and ``effects`` count its events in the evidence.
    """

    offset_ns: int
    drift_ppm: float
    interval_ns: Interval
    local_ns: tuple[int, int, int]
    intervals_ns: tuple[Interval, Interval, Interval]
    causes: int
    effects: int


@dataclass(frozen=True)
class Contradiction:
    """Evidence that no clocks of this model can have brought about, worst piece first in line.

    ``early_ns`` is how much too early, as aligned, the effect ``index`` of ``kind`` is; ``count``
    effects of ``total`` of that kind are too early by more than the tolerance.
    """

    cause_machine: str
    effect_machine: str
    kind: str
    index: int
    cause_ns: int
    effect_ns: int
    early_ns: int
    count: int
    total: int

    def __str__(self) -> str:
        own = self.cause_machine == self.effect_machine
        whose = self.cause_machine if own else f"{self.cause_machine} and {self.effect_machine}"
        return (
            f"{'clock' if own else 'clocks'} of {whose} contradict{'s itself' if own else ''}: "
            f"{self.kind} {self.index} at {self.effect_ns} on {self.effect_machine} is "
            f"{self.early_ns / 1e6:.3f} ms too early for its cause at {self.cause_ns} on "
            f"{self.cause_machine} ({self.count} of {self.total} are): stamps are wrong, or "
            "a clock was set in mid-recording; no interval relies on events between the two"
        )


@dataclass(frozen=True)
class Alignment:
    """Clocks of machines by name. With ``contradictions``, they are those that violate least.

    ``reference_ns`` is the middle of the recording on the clock of machine ``reference``.
    """

    reference: str
    reference_ns: int
    drift_limit_ppm: float
    tolerance_ns: int
    clocks: Mapping[str, MachineClock]
    contradictions: tuple[Contradiction, ...]

    def to_reference(self, machine: str, times_ns: Int64s) -> Int64s:
        """Times of ``machine``'s clock on the reference's, rounded to the nanosecond.

        Only the drift's part is rounded (half to even), so order is kept: none becomes later than
        one that was after it. ``UserError`` for a machine that is not aligned.
        """
        clock = self._clock(machine)
        elapsed = np.asarray(times_ns, np.int64) - (self.reference_ns + clock.offset_ns)
        gained = np.rint(elapsed * slope_of(clock.drift_ppm)).astype(np.int64)
        times: Int64s = elapsed - gained + self.reference_ns
        return times

    def interval_at(self, machine: str, times_ns: Int64s) -> tuple[Floats, Floats]:
        """Low and high, in ns: how far true times can be from what ``to_reference`` says.

        ``times_ns`` are ``machine``'s, in the recording or outside; infinite for no bound.
        """
        clock = self._clock(machine)
        begin, _, end = clock.local_ns
        times = np.asarray(times_ns, np.int64) - begin
        low = [-np.inf if low is None else float(low) for low, _ in clock.intervals_ns]
        high = [np.inf if high is None else float(high) for _, high in clock.intervals_ns]
        # The error is a line in time. In the recording the largest possible one is convex, so below
        # its chords; outside it goes on from the ends with slopes that both ends, and the limit of
        # drifts, allow.
        slope, limit = slope_of(clock.drift_ppm), self.drift_limit_ppm / 1e6
        falls = max((low[2] - high[0]) / (end - begin), slope - limit)
        rises = min((high[2] - low[0]) / (end - begin), slope + limit)
        if machine == self.reference:
            falls = rises = 0.0
        knots = np.array(clock.local_ns) - begin
        before, after = np.maximum(-times, 0), np.maximum(times - knots[2], 0)
        return (
            _chords(times, knots, low) - before * rises + after * falls,
            _chords(times, knots, high) - before * falls + after * rises,
        )

    def as_json(self) -> dict[str, Any]:
        """Plain data for ``json``: the fields of this module's classes by their names."""
        return {"schema": SCHEMA, **asdict(self)}

    def _clock(self, machine: str) -> MachineClock:
        if machine not in self.clocks:
            known = ", ".join(self.clocks)
            raise UserError(f"machine {machine}: is not aligned; these are: {known}")
        return self.clocks[machine]


def slope_of(drift_ppm: float) -> float:
    """What the clock gains per second of its own; its drift is per second of the reference's."""
    drift = drift_ppm / 1e6
    return drift / (1 + drift)


def _chords(times: Int64s, knots: Int64s, values: list[float]) -> Floats:
    if not math.isfinite(values[0]):
        return np.full(times.shape, values[0])
    line: Floats = np.interp(times, knots, values)
    return line
