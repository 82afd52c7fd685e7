"""The aligned clocks of a job's machines: offsets, uncertainty, and conversion of times.

    clock of m at the reference's time t:   t + offset_m + drift_m * (t - reference_ns)

All roles on one machine share its clock. ``alignment.align`` makes these objects.
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
"""Low and high bounds in ns. None: no evidence bounds that side."""


@dataclass(frozen=True)
class MachineClock:
    """One machine's clock relative to the reference's.

    It is ``offset_ns`` ahead at the alignment's ``reference_ns``, and gains ``drift_ppm`` µs per
    second. The true time of an event is the result of ``to_reference`` plus a value between the
    bounds in ``interval_ns``. These bounds hold for the whole recording; those in ``intervals_ns``
    hold at its start, middle and end, which are ``local_ns`` on this clock. ``causes`` and
    ``effects`` count the machine's events in the evidence.
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
    """Evidence that no clocks of this model can explain, and its worst piece.

    After alignment, effect number ``index`` of ``kind`` is too early by ``early_ns``. ``count`` of
    the ``total`` effects of that kind are too early by more than the tolerance.
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
    """Clocks of machines by name. With ``contradictions``, these clocks violate the evidence least.

    ``reference_ns`` is the middle of the recording on the clock of machine ``reference``.
    """

    reference: str
    reference_ns: int
    drift_limit_ppm: float
    tolerance_ns: int
    clocks: Mapping[str, MachineClock]
    contradictions: tuple[Contradiction, ...]

    def to_reference(self, machine: str, times_ns: Int64s) -> Int64s:
        """Converts times of ``machine``'s clock to the reference's, rounded to the nanosecond.

        Only the drift's part is rounded (half to even), so the order of times is preserved. Raises
        ``UserError`` if the machine is not aligned.
        """
        clock = self._clock(machine)
        elapsed = np.asarray(times_ns, np.int64) - (self.reference_ns + clock.offset_ns)
        gained = np.rint(elapsed * slope_of(clock.drift_ppm)).astype(np.int64)
        times: Int64s = elapsed - gained + self.reference_ns
        return times

    def interval_at(self, machine: str, times_ns: Int64s) -> tuple[Floats, Floats]:
        """How far true times can be from the results of ``to_reference``: low and high, in ns.

        ``times_ns`` are on ``machine``'s clock, inside or outside the recording. A missing bound
        is infinite.
        """
        clock = self._clock(machine)
        begin, _, end = clock.local_ns
        times = np.asarray(times_ns, np.int64) - begin
        low = [-np.inf if low is None else float(low) for low, _ in clock.intervals_ns]
        high = [np.inf if high is None else float(high) for _, high in clock.intervals_ns]
        # The error is linear in time. Within the recording, the largest possible error is convex,
        # so it lies below its chords. Outside, it continues from the ends with the slopes that both
        # ends and the drift limit allow.
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
        """Plain data for ``json``: the fields of this module's classes, by name."""
        return {"schema": SCHEMA, **asdict(self)}

    def _clock(self, machine: str) -> MachineClock:
        if machine not in self.clocks:
            known = ", ".join(self.clocks)
            raise UserError(f"machine {machine}: is not aligned; these are: {known}")
        return self.clocks[machine]


def slope_of(drift_ppm: float) -> float:
    """Converts a drift per reference second to the gain per second of the clock itself."""
    drift = drift_ppm / 1e6
    return drift / (1 + drift)


def _chords(times: Int64s, knots: Int64s, values: list[float]) -> Floats:
    if not math.isfinite(values[0]):
        return np.full(times.shape, values[0])
    line: Floats = np.interp(times, knots, values)
    return line
