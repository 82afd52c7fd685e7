"""Networks with clocks that are known, for tests of their alignment."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from byteprophet.timeline.alignment import Alignment, Evidence

Times = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TrueClock:
    """Shows ``t + offset_ns + drift * t`` at the true time t, rounded down."""

    offset_ns: int = 0
    drift_ppb: int = 0

    def shows(self, times_ns: Times) -> Times:
        whole, rest = np.divmod(times_ns, 10**9)
        return times_ns + self.offset_ns + whole * self.drift_ppb + rest * self.drift_ppb // 10**9


def messages(
    a: str, b: str, clocks: dict[str, TrueClock], sent_ns: Times, delay_ns: Times, **more: object
) -> Evidence:
    """Messages from a to b, each sent at its true time and seen there one delay later."""
    causes, effects = clocks[a].shows(sent_ns), clocks[b].shows(sent_ns + delay_ns)
    return Evidence(a, b, "push", causes, effects, **more)  # type: ignore[arg-type]


def errors(alignment: Alignment, clocks: dict[str, TrueClock], times_ns: Times) -> dict[str, Times]:
    """Per machine: what it shows at true times, aligned, against what the reference shows then.

    What is asked for is the reference's clock, whatever that clock's own error.
    """
    truth = clocks[alignment.reference].shows(times_ns)
    return {
        name: truth - alignment.to_reference(name, clock.shows(times_ns))
        for name, clock in clocks.items()
    }


def offset_between(a: TrueClock, b: TrueClock, reading_ns: int) -> Fraction:
    """How far b's clock is ahead of a's when a's shows ``reading_ns``, exactly."""
    true = Fraction(reading_ns - a.offset_ns) / (1 + Fraction(a.drift_ppb, 10**9))
    return true * (1 + Fraction(b.drift_ppb, 10**9)) + b.offset_ns - reading_ns
