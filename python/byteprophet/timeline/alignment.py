"""Aligns the clocks of a job's machines, using events that one machine caused on another.

``align`` finds the offset and drift of every machine's clock relative to a reference clock. Linear
programs (``alignment_program``) determine which clocks are consistent with the evidence. The
estimate is the likeliest of these clocks; its interval covers all of them. docs/timeline.md
describes the model and its limits.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from byteprophet.errors import UserError
from byteprophet.timeline.alignment_evidence import Evidence
from byteprophet.timeline.alignment_program import Clock, Clocks
from byteprophet.timeline.alignment_result import Alignment, Contradiction, Interval, MachineClock
from byteprophet.timeline.alignment_rough import Frame, frame

__all__ = ["Alignment", "Contradiction", "Evidence", "MachineClock", "align"]

DRIFT_LIMIT_PPM = 1000.0
"""Two kernels can slew their clocks in opposite directions, each at its limit of 500 ppm."""
TOLERANCE_NS = 1000
"""How much too early a timestamp may be.

The processors of one machine have slightly different clocks, and clocks have a granularity.
"""


_AT = (-1.0, 0.0, 1.0)  # start, middle and end of the recording
_ROUNDING_NS = 2  # rounding errors of stored offsets, converted times and the solver


def align(
    machines: Sequence[str],
    evidence: Sequence[Evidence],
    reference: str | None = None,
    drift_limit_ppm: float = DRIFT_LIMIT_PPM,
    tolerance_ns: int = TOLERANCE_NS,
) -> Alignment:
    """Aligns the clocks of ``machines`` to that of ``reference`` (the first machine, if None).

    No clock's rate may differ from the reference's by more than ``drift_limit_ppm``; effects may be
    stamped too early by up to ``tolerance_ns``. If evidence is contradictory, the result lists the
    contradictions and is based on the rest. Raises ``UserError`` if ``evidence`` or ``reference``
    names an unknown machine, or if no evidence connects a machine with the reference.
    """
    number = _numbers(machines, evidence)
    if reference is not None and reference not in number:
        raise UserError(f"reference {reference}: is none of the machines {', '.join(machines)}")
    if not 0 <= drift_limit_ppm <= 1e5:
        raise UserError(f"drift_limit_ppm {drift_limit_ppm}: must be from 0 to 100000")
    if tolerance_ns < 0:
        raise UserError(f"tolerance_ns {tolerance_ns}: must not be negative")
    home = 0 if reference is None else number[reference]
    paired = [
        ((number[each.cause_machine], number[each.effect_machine]), each)
        for each in evidence
        if len(each)
    ]
    seen = frame(machines, home, paired)
    stamps = [seen.stamps(*each) for each in paired]
    clocks = Clocks(len(machines), home, seen.half_ns, stamps, drift_limit_ppm / 1e6, tolerance_ns)
    without = clocks.contradictions()
    found = clocks.estimate(without)
    extent = clocks.extent(without, _AT)
    causes = Counter[int]()
    effects = Counter[int]()
    for (cause, effect), each in paired:
        causes[cause] += len(each)
        effects[effect] += len(each)
    alignment = Alignment(
        machines[home],
        seen.middle_ns,
        drift_limit_ppm,
        tolerance_ns,
        {
            name: _machine_clock(seen, i, found[i], extent[i], causes[i], effects[i])
            for i, name in enumerate(machines)
        },
        (),
    )
    worst = [
        _worst(alignment, [each for pair, each in paired if frozenset(pair) == two])
        for two in without
    ]
    worst.sort(key=lambda contradiction: -contradiction.early_ns)
    return replace(alignment, contradictions=tuple(worst))


def _numbers(machines: Sequence[str], evidence: Sequence[Evidence]) -> dict[str, int]:
    number = {name: i for i, name in enumerate(machines)}
    if not machines or len(number) != len(machines):
        raise UserError(f"machines {', '.join(machines)}: must be one or more, each once")
    for each in evidence:
        for name in (each.cause_machine, each.effect_machine):
            if name not in number:
                raise UserError(f"{each}: {name} is none of the machines {', '.join(machines)}")
    return number


def _machine_clock(
    seen: Frame,
    machine: int,
    found: Clock,
    extent: Sequence[tuple[float, float]],
    causes: int,
    effects: int,
) -> MachineClock:
    gains = found.slope_ns / seen.half_ns
    offset_ns = seen.rough_ns[machine] + round(found.level_ns / (1 - gains))
    begin, middle, end = (
        _interval(found.level_ns + found.slope_ns * at, *extent_then)
        for at, extent_then in zip(_AT, extent, strict=True)
    )
    both = (
        None if begin[0] is None or end[0] is None else min(begin[0], end[0]),
        None if begin[1] is None or end[1] is None else max(begin[1], end[1]),
    )
    return MachineClock(
        offset_ns,
        gains / (1 - gains) * 1e6 + 0.0,  # no negative zero
        both,
        seen.local_ns(machine),
        (begin, middle, end),
        causes,
        effects,
    )


def _interval(wrong_ns: float, least_ns: float, most_ns: float) -> Interval:
    """The interval of the true time around a time that was corrected by ``wrong_ns``.

    The clock's actual error is from ``least_ns`` to ``most_ns``.
    """
    if least_ns == most_ns == wrong_ns:
        return 0, 0  # the reference
    return (
        math.floor(wrong_ns - most_ns) - _ROUNDING_NS if math.isfinite(most_ns) else None,
        math.ceil(wrong_ns - least_ns) + _ROUNDING_NS if math.isfinite(least_ns) else None,
    )


def _worst(alignment: Alignment, evidence: Sequence[Evidence]) -> Contradiction:
    """The piece of ``evidence``, all between two machines, whose effect is the most too early."""
    found = []
    for each in evidence:
        causes = alignment.to_reference(each.cause_machine, each.cause_ns)
        early = (
            causes + each.minimum_ns - alignment.to_reference(each.effect_machine, each.effect_ns)
        )
        i = int(early.argmax())
        found.append(
            Contradiction(
                each.cause_machine,
                each.effect_machine,
                each.kind,
                i,
                int(each.cause_ns[i]),
                int(each.effect_ns[i]),
                int(early[i]),
                int(np.count_nonzero(early > alignment.tolerance_ns)),
                len(each),
            )
        )
    return max(found, key=lambda contradiction: contradiction.early_ns)
