"""One plan from its issue to its outcome: who accepted it, who adopted it, and the result.

This module uses no clock and no socket: callers pass times. Only the coordinator uses it.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field

from byteprophet.control.iteration_times import IterationTimes
from byteprophet.control.messages import Plan

MOST_ATTEMPTS = 5
"""How often a plan is issued at most. Each attempt has a wider margin for workers that are late."""

_SETTLING_ITERATIONS = 2  # until iterations are representative of a new plan
_ENOUGH_ITERATIONS = 10


@dataclass(frozen=True)
class Outcome:
    """The effect of a plan.

    ``measured_iteration_ns`` is the median over iterations of the slowest worker's time. ``error``
    is the measured time divided by the predicted one, minus 1.
    """

    measured_iteration_ns: int
    error: float
    iterations: int


@dataclass
class Adoption:
    """The current plan. ``names``: the role names of the workers that are to adopt it."""

    plan: Plan
    names: frozenset[str]
    attempt: int = 1
    accepted: set[str] = field(default_factory=set)
    late: set[str] = field(default_factory=set)
    adopted: dict[str, int] = field(default_factory=dict)
    told_iterations: int = 0  # iterations in the outcome that was logged last
    _times: IterationTimes = field(default_factory=IterationTimes)  # under this plan

    @property
    def everywhere(self) -> bool:
        """Whether some worker has adopted the plan, and all in ``names`` have."""
        return bool(self.adopted) and self.names <= self.adopted.keys()

    def missed_by(self) -> list[str]:
        """The workers that have neither accepted nor adopted the plan."""
        return sorted(self.names - self.accepted - self.adopted.keys())

    def took(self, name: str, times: Iterable[tuple[int, int]]) -> None:
        """Worker ``name`` reports iterations. Those before the plan has settled are ignored."""
        first = self.plan.at_iteration + _SETTLING_ITERATIONS
        self._times.add(name, (each for each in times if each[0] >= first))

    def outcome(self, at_least: int = _ENOUGH_ITERATIONS) -> Outcome | None:
        """The outcome; None if all workers together have reported fewer than ``at_least``."""
        slowest = self._times.slowest_ns(0, sys.maxsize, self.names)
        if not self.everywhere or len(slowest) < at_least:
            return None
        measured_ns = int(statistics.median(slowest))
        predicted_ns = max(1, self.plan.predicted_iteration_ns)
        return Outcome(measured_ns, round(measured_ns / predicted_ns - 1, 4), len(slowest))
