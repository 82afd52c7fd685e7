"""One plan from its issue to its outcome: who accepted it, who adopted it, what then happened.

No clock and no socket: times are given. Used by the coordinator only.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from byteprophet.control.messages import Plan

MOST_ATTEMPTS = 5
"""How often a plan is issued, with ever wider margins, if a worker is too late for it."""

_SETTLING_ITERATIONS = 2  # after a change, until iterations are the plan's
_ENOUGH_ITERATIONS = 10
_KEPT_ITERATIONS = 1000


@dataclass(frozen=True)
class Outcome:
    """Median of the slowest worker's iterations; ``error`` is measured over predicted, less 1."""

    measured_iteration_ns: int
    error: float
    iterations: int


@dataclass
class Adoption:
    """The plan in question. ``names``: the workers it was sent to, by role name."""

    plan: Plan
    names: frozenset[str]
    attempt: int = 1
    accepted: set[str] = field(default_factory=set)
    late: set[str] = field(default_factory=set)
    adopted: dict[str, int] = field(default_factory=dict)
    told_iterations: int = 0  # of the outcome that was told last
    _took_ns: dict[int, dict[str, int]] = field(default_factory=dict)

    @property
    def everywhere(self) -> bool:
        """Whether all that it was sent to have adopted it."""
        return self.names <= self.adopted.keys()

    def missed_by(self) -> list[str]:
        """Who has not said that he accepts it."""
        return sorted(self.names - self.accepted - self.adopted.keys())

    def took(self, name: str, times: Iterable[tuple[int, int]]) -> None:
        """Worker ``name`` reports iterations; those before the plan had settled are ignored."""
        first = self.plan.at_iteration + _SETTLING_ITERATIONS
        for iteration, took_ns in times:
            if iteration >= first and len(self._took_ns) < _KEPT_ITERATIONS:
                self._took_ns.setdefault(iteration, {})[name] = took_ns

    def outcome(self, at_least: int = _ENOUGH_ITERATIONS) -> Outcome | None:
        """None while fewer than ``at_least`` iterations have been reported by all workers."""
        slowest: Sequence[int] = [
            max(by_worker.values())
            for by_worker in self._took_ns.values()
            if self.names <= by_worker.keys()
        ]
        if not self.everywhere or len(slowest) < at_least:
            return None
        measured_ns = int(statistics.median(slowest))
        predicted_ns = max(1, self.plan.predicted_iteration_ns)
        return Outcome(measured_ns, round(measured_ns / predicted_ns - 1, 4), len(slowest))
